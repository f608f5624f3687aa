"""Which pod may connect to which other, by the NetworkPolicies of the chart and of a job of its operator."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_operator import settings
from dtj_operator.model import names, spec
from dtj_operator.plan.children.networking import networking, operator_peer
from tests.integration.chart.conftest import Render, kinds
from tests.support.builders import UID, job
from tests.support.network_policies import Pod, allowed

Json = dict[str, Any]
pytestmark = pytest.mark.xdist_group("chart")
AGENT, RENDEZVOUS, GLOO, METRICS, PROBES = 29400, 29500, 40_000, 8080, 8081
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
TEAM, OURS = "team-a", "dtj-system"
PODS = {
    "the job": Pod(TEAM, names.child_labels("digits", UID)),
    "another job": Pod(TEAM, names.child_labels("other", "uid-other")),
    "an earlier job of the name": Pod(TEAM, names.child_labels("digits", "uid-earlier")),
    "another pod of the namespace": Pod(TEAM, {"app": "notebook"}),
    "a job of the name elsewhere": Pod("team-b", names.child_labels("digits", "uid-b")),
    "a pod with copied labels elsewhere": Pod("team-b", names.child_labels("digits", UID)),
    "another pod beside the operator": Pod(OURS, {"app.kubernetes.io/name": "other"}),
    "another release's operator": Pod(
        "elsewhere", {"app.kubernetes.io/name": "dtj-operator", "app.kubernetes.io/instance": "dtj"}
    ),
    "Prometheus": Pod("monitoring", {"app": "prometheus"}),
}
SELECTED = {"networkPolicy": {"enabled": True, "metricsFrom": [MONITORING]}}


def installed(render: Render, values: Json, wants: Json) -> tuple[list[Json], dict[str, Pod]]:
    """Return all NetworkPolicies, and the pods: of an installation, and of a job of it with this spec."""
    manifests = render(values)
    (deployment,) = kinds(manifests, "Deployment")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    flags = settings.parse(container["args"], {"POD_NAMESPACE": OURS})
    readers = (operator_peer(flags.operator_namespace, flags.operator_labels), *flags.agent_readers)
    made = networking(spec.parse(job().wants(**wants).raw()), readers)
    operator = Pod(
        OURS, pod["metadata"]["labels"], {each["name"]: each["containerPort"] for each in container["ports"]}
    )
    policies = [
        *kinds(manifests, "NetworkPolicy"),
        *(body for kind, body in made.items() if kind != "Service"),
    ]
    return policies, {**PODS, "the operator": operator}


def who_reaches(policies: list[Json], pods: dict[str, Pod], target: str, port: int) -> set[str]:
    """Return the names of the pods that may connect to this port."""
    return {name for name, pod in pods.items() if allowed(policies, pod, pods[target], port)}


JOB, AGENTS = {"the job"}, {"the job", "the operator"}
EVERYBODY = {*PODS, "the operator"}
READERS = [
    ("no other reader", {}, {}, AGENTS),
    ("Prometheus, for all jobs", {"network": {"allowFrom": [MONITORING]}}, {}, {*AGENTS, "Prometheus"}),
    ("Prometheus, for this job", {}, {"network": {"allowFrom": [MONITORING]}}, {*AGENTS, "Prometheus"}),
    (
        "the namespace, for this job",
        {},
        {"network": {"allowFrom": [{"podSelector": {}}]}},
        {*AGENTS, "another job", "an earlier job of the name", "another pod of the namespace"},
    ),
]


@pytest.mark.parametrize(
    ("values", "wants", "readers"), [pytest.param(*row[1:], id=row[0]) for row in READERS]
)
def test_job_admits_its_own_pods_and_only_readers_to_the_agents(
    render: Render, values: Json, wants: Json, readers: set[str]
):
    policies, pods = installed(render, values, wants)
    assert who_reaches(policies, pods, "the job", AGENT) == readers
    assert who_reaches(policies, pods, "the job", RENDEZVOUS) == JOB
    assert who_reaches(policies, pods, "the job", GLOO) == JOB


def test_job_without_isolation_admits_everybody(render: Render):
    policies, pods = installed(render, {}, {"network": {"policy": "None"}})
    for port in (AGENT, RENDEZVOUS, GLOO):
        assert who_reaches(policies, pods, "the job", port) == EVERYBODY


def test_policies_of_a_job_restrict_no_other_pod(render: Render):
    policies, pods = installed(render, {}, {})
    for name in EVERYBODY - JOB:
        assert who_reaches(policies, pods, name, 80) == EVERYBODY


@pytest.mark.parametrize(
    ("values", "metrics", "other"),
    [
        pytest.param({}, EVERYBODY, EVERYBODY, id="no policy"),
        pytest.param({"networkPolicy": {"enabled": True}}, EVERYBODY, set(), id="metrics for all"),
        pytest.param(SELECTED, {"Prometheus"}, set(), id="metrics for Prometheus"),
    ],
)
def test_operator_admits_probes_and_readers_of_its_metrics(
    render: Render, values: Json, metrics: set[str], other: set[str]
):
    policies, pods = installed(render, values, {})
    assert who_reaches(policies, pods, "the operator", METRICS) == metrics
    assert who_reaches(policies, pods, "the operator", PROBES) == EVERYBODY
    assert who_reaches(policies, pods, "the operator", GLOO) == other


def test_operator_with_egress_rules_still_reaches_the_agents_that_they_name(render: Render):
    egress = [{"to": [{"namespaceSelector": {}}], "ports": [{"port": AGENT, "protocol": "TCP"}]}]
    policies, pods = installed(render, {"networkPolicy": {"enabled": True, "egress": egress}}, {})
    operator = pods["the operator"]
    assert allowed(policies, operator, pods["the job"], AGENT)
    assert not allowed(policies, operator, pods["another pod of the namespace"], 80)
