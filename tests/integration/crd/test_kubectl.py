"""What a user sees of the API through kubectl: columns, help, and that every example is accepted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.support.kubectl import Json, Kubectl

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
JOB: Json = {
    "apiVersion": "dtj.dev/v1alpha1",
    "kind": "DistributedTrainingJob",
    "metadata": {"name": "digits"},
    "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "trainer"}]}}},
}
STATUS: Json = {
    "phase": "Running",
    "ready": "2/2",
    "step": "1200/5000",
    "worldSize": 4,
    "restarts": {"total": 3},
    "message": "all replicas are running or finished",
    "goodput": {"percent": "97.2"},
    "avoidedNodes": [
        {"node": "w1", "faults": 1, "at": "2026-01-01T00:00:00Z"},
        {"node": "w2", "faults": 2, "at": "2026-01-01T00:00:00Z", "until": "2026-01-01T01:00:00Z"},
    ],
    "replicas": 2,
    "selector": "dtj.dev/job-name=digits",
}


def columns(text: str) -> Json:
    """Return the only row of a table as heading -> cell; cells are separated by three spaces."""
    head, line = text.splitlines()
    starts = [match.start() for match in re.finditer(r"\S+( \S+)*", head)]
    ends = [*starts[1:], None]
    return {head[a:b].strip(): line[a:b].strip() for a, b in zip(starts, ends, strict=True)}


@pytest.fixture
def running(kubectl: Kubectl) -> Kubectl:
    """Return kubectl in a namespace that has a job with the status above."""
    kubectl.apply(JOB)
    kubectl.set_status("dtj", "digits", **STATUS)
    return kubectl


def test_table_shows_state_at_a_glance(running: Kubectl):
    line = columns(running("get", "dtj"))
    assert line.pop("AGE")
    assert line == {
        "NAME": "digits",
        "PHASE": "Running",
        "READY": "2/2",
        "STEP": "1200/5000",
        "RESTARTS": "3",
    }


def test_wide_table_adds_world_goodput_nodes_and_message(running: Kubectl):
    line = columns(running("get", "dtj", "-o", "wide"))
    assert line["WORLD"] == "4"
    assert line["GOODPUT"] == "97.2"
    assert line["NODE AVOIDED"] == "w2", "a single fault is not enough"
    assert line["MESSAGE"] == "all replicas are running or finished"


def test_scale_subresource_reports_pods_that_have_a_node(running: Kubectl):
    path = f"/apis/dtj.dev/v1alpha1/namespaces/{running.namespace}/distributedtrainingjobs/digits/scale"
    assert json.loads(running("get", "--raw", path))["status"] == {
        "replicas": 2,
        "selector": "dtj.dev/job-name=digits",
    }


def test_status_is_ignored_when_the_spec_is_written(running: Kubectl):
    before = running.get("dtj", "digits")
    running.apply({**JOB, "status": {"phase": "Failed"}})
    after = running.get("dtj", "digits")
    assert before is not None
    assert after is not None
    assert after["status"]["phase"] == "Running"
    assert after["metadata"]["generation"] == before["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("dtj.spec", "processesPerReplica"),
        ("dtj.spec.recovery.maxRestarts", "0: the job fails at the first fault"),
        ("dtj.spec.checkpoint.volume", "Exactly one volume source"),
        ("dtj.spec.template.spec.hostname", "Set by the operator"),
        ("dtj.spec.elastic", "kubectl scale"),
        ("dtj.spec.hang.action", "the ranks that the others wait for"),
        ("dtj.spec.recovery.scope", "the agents in the others can recover in place"),
        ("dtj.spec.recovery.nodeLostSeconds", "force-deleted and replaced, uncounted. Never:"),
        ("dtj.status.failure", "Rank that failed first"),
        ("dtj.status.avoidedNodes", "Nodes on which this job had faults"),
        ("dtj.status.goodput", "Where the time went"),
    ],
)
def test_explain_helps(kubectl: Kubectl, field: str, words: str):
    assert words in " ".join(kubectl("explain", field).split())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_accepted(kubectl: Kubectl, example: Path):
    jobs = [each for each in yaml.safe_load_all(example.read_text()) if each["kind"] == JOB["kind"]]
    kubectl("create", "--validate=strict", "-f", str(example))
    assert jobs
    for job in jobs:
        stored = kubectl.get("dtj", job["metadata"]["name"])
        assert stored is not None
        assert stored["spec"]["template"] == job["spec"]["template"], "no field was dropped"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_can_be_applied_twice(kubectl: Kubectl, example: Path):
    command = ("apply", "--server-side", "--validate=strict", "-f", str(example))
    kubectl(*command)
    assert "serverside-applied" in kubectl(*command)


def test_job_follows_the_names_that_kustomize_makes(kubectl: Kubectl):
    kubectl("apply", "-k", str(EXAMPLES[0].parent / "kustomize"))
    job = kubectl.get("dtj", "team-from-git")
    assert job is not None
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    code, login = pod["volumes"][0]["configMap"]["name"], container["envFrom"][0]["secretRef"]["name"]
    assert kubectl.get("configmap", code) is not None
    assert kubectl.get("secret", login) is not None
    assert container["image"].startswith("registry.example.com/dtj/trainer:")


def test_label_selects_one_of_several_jobs_of_an_example(kubectl: Kubectl):
    (strategies,) = (each for each in EXAMPLES if each.stem == "strategies")
    kubectl("apply", "-f", str(strategies), "-l", "strategy=pp-ddp")
    assert [each["metadata"]["name"] for each in kubectl.list("dtj")] == ["text-pp-ddp"]
