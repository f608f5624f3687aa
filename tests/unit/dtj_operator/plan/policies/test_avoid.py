"""Nodes with faults of this job: which are recorded, which are avoided, and when avoidance stops."""

from typing import Any

import pytest

from dtj_operator.model.views import AdmissionView, NodeView
from dtj_operator.plan.actions import AllowNodes, CreatePod, DeletePod, Restart
from dtj_operator.plan.planner import plan
from dtj_operator.plan.policies import avoid
from dtj_operator.plan.policies.restart import restart
from dtj_operator.plan.report.status import new_status
from tests.support.builders import NOW, JobBuilder, PodBuilder, at, job, pod
from tests.unit.dtj_operator.plan.test_node_loss import EXPIRED, LOST, TWO, away, cluster, lease, node, silent

param = pytest.param


def faulty(*entries: tuple[str, int, float]) -> dict[str, Any]:
    return {
        "avoidedNodes": [{"node": name, "faults": faults, "at": at(-ago)} for name, faults, ago in entries]
    }


def failed_on(node: str) -> dict[str, Any]:
    return {"replica": 0, "node": node, "reason": "ExitCode", "exitCode": 1}


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
            SEEN.but(pod(1).crashed().on("n1")).was("Running", **faulty(("n1", 5, -3600))),
            [("n1", 1)],
            id="a fault in the future, from before the clock was set back",
        ),
        param(
            SEEN.but(pod(1).running().on("n1").deleting()),
            [],
            id="an eviction does not count against the node",
        ),
        param(
            SEEN.but(pod(1).refused("UnexpectedAdmissionError").on("n1")),
            [("n1", 1)],
            id="a node that rejects the pod, such as without its GPU",
        ),
        param(
            SEEN.but(pod(1).crashed(137).evicted("it used more storage than its limit").on("n1")),
            [],
            id="a pod that used too much storage does not count",
        ),
        param(SEEN.but(pod(1).crashed(76, at=NOW - 9).on("n1")), [], id="a lost peer does not count"),
        param(
            SEEN.but(pod(1).reported(75, reason="Stopped").on("n1")),
            [],
            id="a stop on request does not count",
        ),
        param(SEEN.without(1), [], id="the node of the pod is unknown"),
        param(
            SEEN.but(pod(0).crashed().on("n0"), pod(1).crashed(at=NOW - 1).on("n1")),
            [],
            id="an error of the program on two nodes",
        ),
        param(
            SEEN.but(pod(0).crashed(76).on("n0"), pod(1).crashed().on("n1")),
            [("n1", 1)],
            id="an error of the program, and a peer that it lost",
        ),
        param(
            SEEN.but(pod(0).crashed(139).on("n0"), pod(1).crashed(139, at=NOW - 1).on("n1")),
            [("n1", 1)],
            id="a signal, even if another node has one too",
        ),
        param(
            SEEN.but(pod(1).crashed().on("n1")).was("Running", failure=failed_on("n0")),
            [],
            id="the error of the failure before, on another node",
        ),
        param(
            SEEN.but(pod(1).crashed().on("n1")).was("Running", failure=failed_on("n1")),
            [("n1", 1)],
            id="the error of the failure before, on the same node",
        ),
        param(
            SEEN.but(pod(1).crashed(2).on("n1")).was("Running", failure=failed_on("n0")),
            [("n1", 1)],
            id="another error than that before on another node",
        ),
        param(
            SEEN.but(pod(1).crashed().on("new")).was(
                "Running", **faulty(*((f"n{i}", 1, i) for i in range(20)))
            ),
            [("new", 1), *((f"n{i}", 1) for i in range(19))],
            id="twenty nodes are recorded",
        ),
        param(
            SEEN.recovery(avoidNodeAfterFaults=3).but(pod(1).reported(reason="DeviceFault").on("n1")),
            [("n1", 3)],
            id="a GPU that cannot be used counts at once",
        ),
        param(
            SEEN.recovery(avoidNodeAfterFaults="Never").but(pod(1).reported(reason="DeviceFault").on("n1")),
            [("n1", 1)],
            id="a GPU that cannot be used, where no node is avoided",
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


def without(gone: str) -> dict[str, NodeView]:
    return {name: view for name, view in cluster().items() if name != gone}


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
        param(FAULTY.seeing(nodes=without("n0")), ["n1"], id="half of three: one no longer exists"),
    ],
)
def test_avoided_nodes(given: JobBuilder, expected: list[str]) -> None:
    assert list(avoid.avoided(given.snapshot()).required) == expected


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


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
MARKED = {"avoidedNodes": [{"node": f"n{i}", "faults": 2, "at": at(-1), "preferred": True} for i in (0, 1)]}


def test_new_pods_prefer_other_nodes_once_no_capacity_was_found_without_these() -> None:
    mine = {"weight": 7, "preference": ZONE}
    given = SEEN.pod_spec(affinity={"nodeAffinity": {PREFERRED: [mine]}}).was("Pending", **MARKED).without(1)
    (made,) = (a.body for a in plan(given.snapshot()).actions if isinstance(a, CreatePod))

    assert made["spec"]["affinity"]["nodeAffinity"] == {
        PREFERRED: [mine, {"weight": 100, "preference": term("n0", "n1")}]
    }
    assert "dtj.dev/avoids-nodes" not in made["metadata"]["labels"]


def test_pods_that_avoid_nodes_are_labeled() -> None:
    (made,) = (
        a.body for a in plan(FAULTY.was("Pending").without(1).snapshot()).actions if isinstance(a, CreatePod)
    )

    assert made["metadata"]["labels"]["dtj.dev/avoids-nodes"] == "true"


def waiting(for_s: float) -> PodBuilder:
    return pod(1).unschedulable(since=NOW - for_s).avoiding()


JUST_LOST = {"failure": {"reason": "NodeLost", "node": "n1"}, "avoidedNodes": [{"node": "n1", "at": at(0)}]}
RECOVERING = SEEN.was("Recovering", **JUST_LOST)


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        param(FAULTY.but(waiting(300)), True, id="unschedulable for long enough while nodes are avoided"),
        param(FAULTY.but(waiting(299)), False, id="an autoscaler may still add a node"),
        param(FAULTY.recovery(avoidNodeWaitSeconds=30).but(waiting(30)), True, id="a shorter wait"),
        param(FAULTY, False, id="all pods are scheduled"),
        param(
            FAULTY.but(pod(1).unschedulable(since=NOW - 999)), False, id="a pod that does not avoid any node"
        ),
        param(SEEN.but(waiting(10)), True, id="its job avoids no node any more"),
        param(SEEN.but(waiting(9)), False, id="old pods may still hold the capacity"),
        param(RECOVERING.but(waiting(60)), True, id="a lost node, of which the scheduler knows by now"),
        param(RECOVERING.but(waiting(59)), False, id="a lost node that the scheduler may take for ready"),
        param(RECOVERING.seeing(nodes=without("n1")).but(waiting(10)), True, id="a lost node that is gone"),
    ],
)
def test_required_avoidance_ends_if_pods_are_unschedulable(given: JobBuilder, allowed: bool) -> None:
    assert (avoid.allow_nodes(given.snapshot()) is not None) is allowed


@pytest.mark.parametrize("ahead_s", [60, -60])
def test_clock_of_the_cluster_does_not_decide_when_avoidance_ends(ahead_s: float) -> None:
    behind = pod(1).unschedulable(since=NOW - 300 - ahead_s).avoiding()

    assert avoid.allow_nodes(FAULTY.but(behind.seen(unschedulable=NOW - 299)).snapshot()) is None
    assert avoid.allow_nodes(FAULTY.but(behind.seen(unschedulable=NOW - 300)).snapshot()) is not None


PLACED_BY_KUEUE = AdmissionView(cluster_queue="all", pod_set="main", chooses_nodes=True)


def queued(given: JobBuilder) -> JobBuilder:
    return given.in_queue(given.workload("Admitted", admission=PLACED_BY_KUEUE))


@pytest.mark.parametrize(
    "given",
    [
        param(FAULTY.recovery(avoidNodeWaitSeconds=0), id="no wait"),
        param(queued(FAULTY), id="Kueue has chosen the nodes, and keeps to them"),
    ],
)
def test_other_nodes_are_only_preferred(given: JobBuilder) -> None:
    found = avoid.avoided(given.snapshot())

    assert (found.required, found.preferred) == ((), ("n0", "n1", "n2"))


def test_lost_node_is_avoided_until_kueue_has_chosen_another_one() -> None:
    assert avoid.avoided(queued(RECOVERING).snapshot()).required == ("n1",)


def test_nodes_that_no_longer_exist_are_not_in_the_affinity_of_new_pods() -> None:
    """Karpenter adds no node for a pod with such an affinity; as after the loss of a spot instance."""
    given = RECOVERING.with_network().without(1).seeing(nodes=without("n1"))
    (made,) = (a.body for a in plan(given.snapshot()).actions if isinstance(a, CreatePod))

    assert "affinity" not in made["spec"]


def test_unschedulable_pod_is_recreated_without_a_fault_and_the_faults_are_kept() -> None:
    given = FAULTY.but(waiting(300))
    verdict = avoid.allow_nodes(given.snapshot())
    assert verdict == AllowNodes(((1, pod(1).pod.uid),))

    after = new_status(given.snapshot(), verdict)
    assert (after["phase"], after["restarts"]["total"]) == ("Running", 0)
    entries = [(e["node"], e["faults"], e.get("preferred", False)) for e in after["avoidedNodes"]]
    assert entries == [("n0", 2, True), ("n1", 3, True), ("n2", 2, False), ("n3", 1, False)]
    second = given.stored(after)
    assert plan(second.snapshot()).actions == (DeletePod(waiting(300).pod, 5),)
    third = plan(second.without(1).snapshot())
    assert (third.verdict, [type(a) for a in third.actions]) == (None, [CreatePod])


def test_any_number_of_unschedulable_pods_is_recreated_and_no_list_outgrows_the_schema() -> None:
    """150 pods, and 40 others that are being replaced already."""
    nodes = {f"n{i}": node(f"n{i}") for i in range(40)}
    bad = faulty(*((f"n{i}", 2, i) for i in range(16)))
    gone = {str(i): f"old-{i}" for i in range(150, 190)}
    base = job().replicas(190).with_network().seeing(nodes=nodes).recovery(scope="Replica")
    stuck = {i: pod(i).unschedulable(since=NOW - 300).avoiding() for i in range(150)}
    given = base.was("Recovering", **bad, memory={"replacing": gone}).having(*stuck.values())

    replaced: set[int] = set()
    for _ in range(10):
        verdict = avoid.allow_nodes(given.snapshot())
        if verdict is None:
            break
        status = new_status(given.snapshot(), verdict)
        assert len(status["memory"]["replacing"]) <= 100
        assert len(status["avoidedNodes"]) <= 20
        done = dict(verdict.replaces)
        replaced |= done.keys()
        # Their successors are scheduled, and so are those of the 40 others.
        successors = [pod(i).with_uid(f"new-{i}").running().on("n20") for i in (*done, *range(150, 190))]
        given = given.stored(status).but(*successors)

    assert replaced == set(range(150))


DYING = pod(1).running().on("n1")
REPLACED = {"memory": {"replacing": {"1": DYING.pod.uid}}}
STUCK = SEEN.recovery(scope="Replica").was("Recovering", **REPLACED).but(DYING.overdue())


def test_node_is_not_avoided_because_a_finalizer_keeps_a_pod() -> None:
    held = STUCK.but(DYING.overdue(for_s=600).held_by("example.com/audit"))

    assert "avoidedNodes" not in new_status(held.snapshot(), None)


@pytest.mark.parametrize("after_faults", [2, "Never"])
def test_node_on_which_a_pod_does_not_terminate_is_avoided_at_once(after_faults: Any) -> None:
    """Before the pod is force-deleted, so that its successor runs elsewhere; counted once."""
    stuck = STUCK.with_network().recovery(avoidNodeAfterFaults=after_faults)
    status = new_status(stuck.snapshot(), None)
    (entry,) = status["avoidedNodes"]
    assert (entry["node"], entry["faults"], entry["stuck"]) == ("n1", 1, True)
    again = stuck.stored(status)
    assert new_status(again.snapshot(), None)["avoidedNodes"] == [entry]

    successor = plan(again.without(1).snapshot())
    (made,) = (a.body for a in successor.actions if isinstance(a, CreatePod))
    terms = made["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert terms == [term("n1")]


def test_nodes_on_which_pods_do_not_terminate_do_not_displace_each_other() -> None:
    """The pods of 30 nodes stop late, as after an outage of their storage: one status, not one per pod."""
    nodes = cluster(count=30)
    pods = [pod(i).running().on(f"n{i}").overdue() for i in range(30)]
    known = faulty(*((f"lost-{i}", 1, 60) for i in range(15)))
    given = job().replicas(30).with_network().seeing(nodes=nodes).was("Recovering", **known).having(*pods)
    status = new_status(given.snapshot(), None)
    first = status["avoidedNodes"]
    assert [entry.get("stuck", False) for entry in first] == [True] * 10 + [False] * 10

    for index in range(30):
        given = given.stored(status).without(index)
        status = new_status(given.snapshot(), None)
        assert status["avoidedNodes"] == first
