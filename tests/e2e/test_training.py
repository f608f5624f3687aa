"""Jobs without faults: our recipe, a user's own script, torchrun; on several nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import shell_job, workload_job
from tests.e2e.test_healing import uids
from tests.e2e.test_nodes import recovered
from tests.support.kubectl import Json, Kubectl
from tests.support.predicates import condition, phase

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> list[Json]:
    """Return the objects of one example."""
    return [each for each in yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()) if each]


def job_of(objects: list[Json]) -> str:
    """Return the name of the only job among these objects."""
    (job,) = (each for each in objects if each["kind"] == "DistributedTrainingJob")
    name: str = job["metadata"]["name"]
    return name


def endless(job: Json, *flags: str) -> None:
    """Let a job train until it is deleted, slowly: its recipe would take all processor time that is left."""
    endless = workload_job("endless", "--steps=1000000", "--step-s=0.1", *flags)["spec"]["template"]["spec"]
    pod = job["spec"]["template"]["spec"]
    pod["containers"][0] |= endless["containers"][0]
    pod["volumes"] = endless["volumes"]


def merged_logs(kubectl: Kubectl, job: str) -> str:
    """Return the logs of all pods of a job."""
    return kubectl("logs", "-l", f"dtj.dev/job-name={job}", "--tail=-1", "--prefix")


@pytest.mark.parametrize("name", ["plain-env", "torchrun"])
def test_a_users_own_script_reaches_world_size_four(kubectl: Kubectl, name: str):
    objects = example(name)
    kubectl.apply(*objects)

    job = kubectl.until("dtj", job_of(objects), condition("Complete"), within_s=240)

    assert job["status"]["worldSize"] == 4
    # Every rank contributes its number plus one to an all-reduce and prints the sum.
    assert merged_logs(kubectl, job_of(objects)).count("sum 10 of 4 ranks") == 4


@pytest.mark.long(80)
def test_strategies_have_the_losses_of_a_single_process(kubectl: Kubectl):
    """Collectives of groups, and messages between stages, on pods of several nodes.

    Losses of all 38 steps, and the score of the final weights. tests/process runs the other strategies.
    """
    jobs = {job["metadata"]["name"]: job for job in example("strategies")}
    found = {}
    for name in ("text-none", "text-tp-fsdp", "text-pp-ddp"):
        job = jobs[name]
        args = job["spec"]["template"]["spec"]["containers"][0]["args"]
        args.insert(1, "--log-every=1")
        args += ["kilobytes=40", "layers=2", "width=64", "context=32", "sample=8"]
        kubectl.apply(job)
        kubectl.until("dtj", name, condition("Complete"), within_s=300)
        log = kubectl("logs", f"{name}-0")
        # The score comes by stderr, and may be before the last loss in the log of a busy node.
        numbers = re.findall(r"  loss (\S+)", log) + re.findall(r"done: .* bits_per_byte (\S+)", log)
        found[name] = [float(each) for each in numbers]
        kubectl("delete", "dtj", name, "--wait=false")

    expected = found["text-none"]
    assert len(expected) > 30
    assert {name: pytest.approx(expected, abs=2e-4) for name in found} == found


@pytest.mark.parametrize("shared_volume", ["checkpointed"], indirect=True)
@pytest.mark.usefixtures("shared_volume")
def test_checkpointed_example_resumes_after_a_pod_is_deleted(kubectl: Kubectl):
    *others, job = example("checkpointed")
    claim = next(each for each in others if each["kind"] == "PersistentVolumeClaim")
    claim["spec"]["storageClassName"] = ""  # the volume of the fixture: not every cluster makes volumes
    endless(job, "--save-every=20")
    kubectl.apply(*others, job)
    kubectl.follow("checkpointed-0", "did step 25 ")

    kubectl("delete", "pod", "checkpointed-1")
    resumed = kubectl.follow("checkpointed-0", "resuming from")

    assert int(re.findall(r"resuming from \S*/step-(\d+)", resumed)[0]) >= 20
    again = kubectl.until("dtj", "checkpointed", recovered(disruptions=1))
    restarts = again["status"]["restarts"]
    assert (restarts["counted"], restarts["disruptions"]) == (0, 1), (
        "the agreed stop of both replicas counts as one disruption"
    )


@pytest.mark.parametrize("shared_volume", ["elastic"], indirect=True)
@pytest.mark.usefixtures("shared_volume")
def test_elastic_example_grows_and_shrinks_while_it_trains(kubectl: Kubectl):
    *others, job = example("elastic")
    claim = next(each for each in others if each["kind"] == "PersistentVolumeClaim")
    claim["spec"]["storageClassName"] = ""  # the volume of the fixture: not every cluster makes volumes
    endless(job)
    kubectl.apply(*others, job)
    kubectl.until("dtj", "elastic", trains_with(2))
    assert_progress_is_shown(kubectl, "elastic", of=1_000_000)
    first = uids(kubectl, "elastic")

    for replicas in (3, 1):
        kubectl("scale", "dtj", "elastic", f"--replicas={replicas}")
        resized = kubectl.until("dtj", "elastic", trains_with(replicas))
        step = resized["status"]["progress"]["step"]
        job = kubectl.until("dtj", "elastic", trains_with(replicas, beyond=step))

    assert (job["status"]["attempt"], job["status"]["restarts"]["total"]) == (0, 0)
    kubectl("wait", "--for=delete", "pod/elastic-1", "pod/elastic-2", "--timeout=60s")
    assert uids(kubectl, "elastic") == {"elastic-0": first["elastic-0"]}, "the remaining pod is not replaced"


def trains_with(replicas: int, *, beyond: int = 0) -> Callable[[Json], bool]:
    """Return a predicate: the job runs with this number of replicas, and is beyond this step."""

    def holds(seen: Json) -> bool:
        status = seen.get("status", {})
        sizes = status.get("worldSize"), status.get("replicaStatuses", {}).get("ready")
        made = status.get("progress", {}).get("step") or 0
        return phase("Running")(seen) and sizes == (replicas, replicas) and made > beyond

    return holds


def test_suspended_example_starts_when_it_is_resumed(kubectl: Kubectl):
    kubectl.apply(*example("suspended"))
    kubectl.until("dtj", "suspended", phase("Suspended"))
    assert not kubectl.list("pods")

    kubectl("patch", "dtj", "suspended", "--type=merge", "-p", '{"spec":{"suspend":false}}')

    assert kubectl.until("dtj", "suspended", condition("Complete"), within_s=240)


def assert_progress_is_shown(kubectl: Kubectl, name: str, *, of: int) -> None:
    """The status of a running job, and kubectl, show its steps so far, of how many, and its loss."""
    # The agent reports steps immediately, and a loss with the first line that the ranks log.
    job = kubectl.until("dtj", name, lambda seen: seen.get("status", {}).get("progress", {}).get("loss"))
    progress: dict[str, Any] = job["status"]["progress"]
    assert 0 < progress["step"] <= of
    assert progress["totalSteps"] == of
    assert float(progress["loss"]) >= 0
    columns = kubectl("get", "dtj", name, "--no-headers").split()
    assert any(re.fullmatch(rf"\d+/{of}", column) for column in columns), columns


def test_pods_carry_no_token_and_no_privilege(kubectl: Kubectl):
    kubectl.apply(shell_job("bare", "true"))

    kubectl.until("dtj", "bare", condition("Complete"))

    for pod in kubectl.list("pods", "dtj.dev/job-name=bare"):
        mounts = json.dumps(pod["spec"]["containers"])
        assert "serviceaccount" not in mounts
        assert pod["spec"]["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
