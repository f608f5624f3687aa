"""Nodes on which a job has had enough faults: who is noted, who is avoided, and when that yields."""

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


def suspects(*entries: tuple[str, int, float]) -> dict[str, Any]:
    return {
        "avoidedNodes": [{"node": name, "faults": faults, "at": at(-ago)} for name, faults, ago in entries]
    }


SEEN = TWO.seeing(nodes=cluster())


def noted(given: JobBuilder) -> list[tuple[str, int]]:
    snapshot = given.snapshot()
    verdict = restart(snapshot)
    assert isinstance(verdict, Restart)
    return [(e["node"], e["faults"]) for e in new_status(snapshot, verdict).get("avoidedNodes", [])]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        param(SEEN.but(pod(1).crashed().on("n1")), [("n1", 1)], id="a fault"),
        param(LOST, [("n1", 1)], id="its loss"),
        param(
            SEEN.seeing(nodes=cluster(away("n0", for_s=41), away("n1", for_s=41))),
            [("n0", 1), ("n1", 1)],
            id="the loss of two",
        ),
        param(
            silent(0, 1).seeing(leases=EXPIRED | {"n0": lease(ago=27)}),
            [("n1", 1), ("n0", 1)],
            id="and of one whose lease ends some seconds later",
        ),
        param(
            silent(0, 1).seeing(leases=EXPIRED | {"n0": lease(ago=9)}),
            [("n1", 1)],
            id="not of one that is well",
        ),
        param(
            SEEN.but(pod(1).crashed().on("n1")).seeing(nodes=cluster(away("n0", for_s=39))),
            [("n1", 1)],
            id="nor beside a fault of another kind",
        ),
        param(
            SEEN.but(pod(1).crashed().on("n1")).was("Running", **suspects(("n0", 1, 5), ("n1", 1, 9))),
            [("n1", 2), ("n0", 1)],
            id="the latest comes first",
        ),
        param(
            SEEN.but(pod(1).crashed().on("n1")).was("Running", **suspects(("n1", 5, 3600))),
            [("n1", 1)],
            id="after an hour all is forgotten",
        ),
        param(SEEN.but(pod(1).running().on("n1").deleting()), [], id="an eviction says nothing of the node"),
        param(SEEN.but(pod(1).crashed(76, at=NOW - 9).on("n1")), [], id="nor does a lost peer"),
        param(SEEN.but(pod(1).crashed(75).on("n1")), [], id="nor a stop on request"),
        param(SEEN.without(1), [], id="nobody knows where the pod was"),
        param(
            SEEN.but(pod(1).crashed().on("new")).was(
                "Running", **suspects(*((f"n{i}", 1, i) for i in range(20)))
            ),
            [("new", 1), *((f"n{i}", 1) for i in range(19))],
            id="twenty are kept",
        ),
    ],
)
def test_faults_are_noted_by_node(given: JobBuilder, expected: list[tuple[str, int]]) -> None:
    assert noted(given) == expected


def test_until_when_a_node_is_avoided_is_told_once_it_is() -> None:
    told = new_status(SEEN.was("Running", **suspects(("n0", 2, 60), ("n1", 1, 90))).snapshot(), None)

    assert told["avoidedNodes"] == [
        {"node": "n0", "faults": 2, "at": at(-60), "until": at(3540)},
        {"node": "n1", "faults": 1, "at": at(-90)},
    ]


def test_node_that_the_template_names_is_not_told_to_be_avoided() -> None:
    given = SEEN.pod_spec(nodeName="n0").was("Running", **suspects(("n0", 2, 60)))

    assert new_status(given.snapshot(), None)["avoidedNodes"] == [{"node": "n0", "faults": 2, "at": at(-60)}]


BAD = (("n0", 2, 1), ("n1", 3, 2), ("n2", 2, 3), ("n3", 1, 4))
HAUNTED = SEEN.was("Running", **suspects(*BAD))
CORDONED = cluster(node("n2", unschedulable=True), node("n3", unschedulable=True))
GPU = cluster(node("n0", labels={"gpu": "a"}), node("n1", labels={"gpu": "a"}), count=8)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        param(HAUNTED, ["n0", "n1"], id="at most half of four, the latest first"),
        param(HAUNTED.seeing(nodes=cluster(count=8)), ["n0", "n1", "n2"], id="all that had enough faults"),
        param(HAUNTED.recovery(avoidNodeAfter=3), ["n1"], id="the user is more patient"),
        param(HAUNTED.recovery(avoidNodeAfter=0), [], id="turned off"),
        param(HAUNTED.seeing(nodes=CORDONED), ["n0"], id="half of those that are not cordoned"),
        param(
            HAUNTED.seeing(nodes=cluster(away("n2"), away("n3"))), ["n0"], id="half of those that are ready"
        ),
        param(
            HAUNTED.pod_spec(nodeSelector={"gpu": "a"}).seeing(nodes=GPU),
            ["n0"],
            id="half of those that match",
        ),
        param(HAUNTED.seeing(nodes=cluster(count=1)), [], id="a single node is never avoided"),
        param(HAUNTED.seeing(nodes=None), [], id="not where nodes may not be read"),
        param(HAUNTED.seeing(now=NOW + 3598.5), ["n0"], id="those whose hour is over are not"),
        param(HAUNTED.pod_spec(nodeName="n0"), [], id="not where the template names the node"),
    ],
)
def test_who_is_avoided(given: JobBuilder, expected: list[str]) -> None:
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
        param({}, [term("n0", "n1")], id="nothing of the user's"),
        param(user(ZONE), [term("n0", "n1", **ZONE)], id="a term of the user's"),
        param(
            user(ZONE, RACK),
            [term("n0", "n1", **ZONE), term("n0", "n1", **RACK)],
            id="every term of the user's, for any of them suffices",
        ),
    ],
)
def test_new_pods_keep_away(affinity: dict[str, Any], terms: list[dict[str, Any]]) -> None:
    given = HAUNTED.pod_spec(affinity={**affinity, "podAntiAffinity": {"x": 1}}).was("Pending").without(1)
    (made,) = (a.body for a in plan(given.snapshot()).actions if isinstance(a, CreatePod))

    assert made["spec"]["affinity"]["podAntiAffinity"] == {"x": 1}
    assert made["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == terms


def test_the_template_is_not_touched_where_nothing_is_avoided() -> None:
    (made,) = (
        a.body for a in plan(SEEN.was("Pending").without(1).snapshot()).actions if isinstance(a, CreatePod)
    )

    assert "affinity" not in made["spec"]


@pytest.mark.parametrize(
    ("given", "lifted"),
    [
        param(HAUNTED.but(pod(1).unschedulable(since=NOW - 10)), True, id="no room while nodes are avoided"),
        param(
            HAUNTED.but(pod(1).unschedulable(since=NOW - 9)), False, id="old pods may be about to leave room"
        ),
        param(HAUNTED, False, id="all have room"),
        param(SEEN.but(pod(1).unschedulable(since=NOW - 99)), False, id="nothing is avoided"),
    ],
)
def test_avoidance_yields_where_nothing_fits(given: JobBuilder, lifted: bool) -> None:
    assert (avoid.allow_nodes(given.snapshot()) is not None) is lifted


def test_a_pod_that_fits_nowhere_is_made_anew_and_nobody_is_blamed() -> None:
    given = HAUNTED.but(pod(1).unschedulable(since=NOW - 10))
    verdict = avoid.allow_nodes(given.snapshot())
    assert verdict == AllowNodes(((1, pod(1).pod.uid),))

    after = new_status(given.snapshot(), verdict)
    assert ("avoidedNodes" in after, after["phase"], after["restarts"]["total"]) == (False, "Running", 0)
    second = given.stored(after)
    assert plan(second.snapshot()).actions == (DeletePod(pod(1).unschedulable(since=NOW - 10).pod, 5),)
    third = plan(second.without(1).snapshot())
    assert (third.verdict, [type(a) for a in third.actions]) == (None, [CreatePod])
