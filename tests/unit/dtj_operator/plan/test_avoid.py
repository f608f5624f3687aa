"""Nodes with faults of this job: which are recorded, which are avoided, and when avoidance stops."""

from typing import Any

import pytest

from dtj_operator.plan.actions import AllowNodes, CreatePod, DeletePod, Restart
from dtj_operator.plan.planner import plan
from dtj_operator.plan.policies import avoid
from dtj_operator.plan.policies.restart import restart
from dtj_operator.plan.status import new_status
from tests.support.builders import NOW, JobBuilder, at, pod
from tests.unit.dtj_operator.plan.test_nodes import EXPIRED, LOST, TWO, away, cluster, lease, node, silent

param = pytest.param


def faulty(*entries: tuple[str, int, float]) -> dict[str, Any]:
    return {
        "avoidedNodes": [{"node": name, "faults": faults, "at": at(-ago)} for name, faults, ago in entries]
    }


SEEN = TWO.seeing(nodes=cluster())


def recorded(given: JobBuilder) -> list[tuple[str, int]]:
    snapshot = given.snapshot()
    verdict = restart(snapshot)
    assert isinstance(verdict, Restart)
    return [(e["node"], e["faults"]) for e in new_status(snapshot, verdict).get("avoidedNodes", [])]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        param(SEEN.but(pod(1).crashed().on("n1")), [("n1", 1)], id="a fault on a node"),
        param(LOST, [("n1", 1)], id="the loss of a node"),
        param(
            SEEN.seeing(nodes=cluster(away("n0", for_s=41), away("n1", for_s=41))),
            [("n0", 1), ("n1", 1)],
            id="the loss of two nodes",
        ),
        param(
            silent(0, 1).seeing(leases=EXPIRED | {"n0": lease(ago=27)}),
            [("n1", 1), ("n0", 1)],
            id="a node lost, and one whose Lease expires seconds later",
        ),
        param(
            silent(0, 1).seeing(leases=EXPIRED | {"n0": lease(ago=9)}),
            [("n1", 1)],
            id="a node lost, beside a healthy node",
        ),
        param(
            SEEN.but(pod(1).crashed().on("n1")).seeing(nodes=cluster(away("n0", for_s=39))),
            [("n1", 1)],
            id="a crash, while another node is about to be lost",
        ),
        param(
            SEEN.but(pod(1).crashed().on("n1")).was("Running", **faulty(("n0", 1, 5), ("n1", 1, 9))),
            [("n1", 2), ("n0", 1)],
            id="latest fault first",
        ),
        param(
            SEEN.but(pod(1).crashed().on("n1")).was("Running", **faulty(("n1", 5, 3600))),
            [("n1", 1)],
            id="faults expire after an hour",
        ),
        param(
            SEEN.but(pod(1).running().on("n1").deleting()),
            [],
            id="an eviction does not count against the node",
        ),
        param(SEEN.but(pod(1).crashed(76, at=NOW - 9).on("n1")), [], id="a lost peer does not count"),
        param(SEEN.but(pod(1).crashed(75).on("n1")), [], id="a stop on request does not count"),
        param(SEEN.without(1), [], id="the node of the pod is unknown"),
        param(
            SEEN.but(pod(1).crashed().on("new")).was(
                "Running", **faulty(*((f"n{i}", 1, i) for i in range(20)))
            ),
            [("new", 1), *((f"n{i}", 1) for i in range(19))],
            id="twenty nodes are recorded",
        ),
    ],
)
def test_faults_are_recorded_per_node(given: JobBuilder, expected: list[tuple[str, int]]) -> None:
    assert recorded(given) == expected


def test_status_says_until_when_a_node_is_avoided() -> None:
    status = new_status(SEEN.was("Running", **faulty(("n0", 2, 60), ("n1", 1, 90))).snapshot(), None)

    assert status["avoidedNodes"] == [
        {"node": "n0", "faults": 2, "at": at(-60), "until": at(3540)},
        {"node": "n1", "faults": 1, "at": at(-90)},
    ]


def test_node_set_by_the_template_is_not_reported_as_avoided() -> None:
    given = SEEN.pod_spec(nodeName="n0").was("Running", **faulty(("n0", 2, 60)))

    assert new_status(given.snapshot(), None)["avoidedNodes"] == [{"node": "n0", "faults": 2, "at": at(-60)}]


BAD = (("n0", 2, 1), ("n1", 3, 2), ("n2", 2, 3), ("n3", 1, 4))
FAULTY = SEEN.was("Running", **faulty(*BAD))
CORDONED = cluster(node("n2", unschedulable=True), node("n3", unschedulable=True))
GPU = cluster(node("n0", labels={"gpu": "a"}), node("n1", labels={"gpu": "a"}), count=8)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        param(FAULTY, ["n0", "n1"], id="at most half of four nodes, latest fault first"),
        param(FAULTY.seeing(nodes=cluster(count=8)), ["n0", "n1", "n2"], id="all nodes with enough faults"),
        param(FAULTY.recovery(avoidNodeAfterFaults=3), ["n1"], id="a higher number of faults"),
        param(FAULTY.recovery(avoidNodeAfterFaults="Never"), [], id="turned off"),
        param(FAULTY.seeing(nodes=CORDONED), ["n0"], id="half of the uncordoned nodes"),
        param(FAULTY.seeing(nodes=cluster(away("n2"), away("n3"))), ["n0"], id="half of the ready nodes"),
        param(
            FAULTY.pod_spec(nodeSelector={"gpu": "a"}).seeing(nodes=GPU),
            ["n0"],
            id="half of the nodes that match the nodeSelector",
        ),
        param(FAULTY.seeing(nodes=cluster(count=1)), [], id="a single node is never avoided"),
        param(FAULTY.seeing(nodes=None), [], id="no permission to read nodes"),
        param(FAULTY.seeing(now=NOW + 3598.5), ["n0"], id="not after an hour without faults"),
        param(FAULTY.pod_spec(nodeName="n0"), [], id="the template sets nodeName"),
    ],
)
def test_avoided_nodes(given: JobBuilder, expected: list[str]) -> None:
    assert list(avoid.avoided(given.snapshot())) == expected


def term(*names: str, **more: Any) -> dict[str, Any]:
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in names]
    return {"matchFields": fields, **more}


ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
RACK = {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def user(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


@pytest.mark.parametrize(
    ("affinity", "terms"),
    [
        param({}, [term("n0", "n1")], id="no affinity in the template"),
        param(user(ZONE), [term("n0", "n1", **ZONE)], id="one term in the template"),
        param(
            user(ZONE, RACK),
            [term("n0", "n1", **ZONE), term("n0", "n1", **RACK)],
            id="every term in the template, because one match is enough",
        ),
    ],
)
def test_new_pods_avoid_nodes_by_affinity(affinity: dict[str, Any], terms: list[dict[str, Any]]) -> None:
    given = FAULTY.pod_spec(affinity={**affinity, "podAntiAffinity": {"x": 1}}).was("Pending").without(1)
    (made,) = (a.body for a in plan(given.snapshot()).actions if isinstance(a, CreatePod))

    assert made["spec"]["affinity"]["podAntiAffinity"] == {"x": 1}
    assert made["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == terms


def test_template_affinity_is_unchanged_if_no_node_is_avoided() -> None:
    (made,) = (
        a.body for a in plan(SEEN.was("Pending").without(1).snapshot()).actions if isinstance(a, CreatePod)
    )

    assert "affinity" not in made["spec"]


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        param(
            FAULTY.but(pod(1).unschedulable(since=NOW - 10)), True, id="unschedulable while nodes are avoided"
        ),
        param(
            FAULTY.but(pod(1).unschedulable(since=NOW - 9)), False, id="old pods may still hold the capacity"
        ),
        param(FAULTY, False, id="all pods are scheduled"),
        param(SEEN.but(pod(1).unschedulable(since=NOW - 99)), False, id="no node is avoided"),
    ],
)
def test_avoidance_stops_if_pods_are_unschedulable(given: JobBuilder, allowed: bool) -> None:
    assert (avoid.allow_nodes(given.snapshot()) is not None) is allowed


def test_unschedulable_pod_is_recreated_without_a_fault() -> None:
    given = FAULTY.but(pod(1).unschedulable(since=NOW - 10))
    verdict = avoid.allow_nodes(given.snapshot())
    assert verdict == AllowNodes(((1, pod(1).pod.uid),))

    after = new_status(given.snapshot(), verdict)
    assert ("avoidedNodes" in after, after["phase"], after["restarts"]["total"]) == (False, "Running", 0)
    second = given.stored(after)
    assert plan(second.snapshot()).actions == (DeletePod(pod(1).unschedulable(since=NOW - 10).pod, 5),)
    third = plan(second.without(1).snapshot())
    assert (third.verdict, [type(a) for a in third.actions]) == (None, [CreatePod])
