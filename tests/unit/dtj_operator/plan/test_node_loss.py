"""Lost nodes: as Kubernetes reports them, as silent agents and Leases show them, and what follows."""

from typing import Any

import pytest

from dtj_operator.model.agent_status import SilentReplica
from dtj_operator.model.spec import Recovery
from dtj_operator.model.views import NodeLease, NodeView
from dtj_operator.plan import blame
from dtj_operator.plan.actions import DeletePod, Restart
from dtj_operator.plan.planner import plan, plan_gone
from dtj_operator.plan.policies import avoid
from dtj_operator.plan.policies.restart import restart
from dtj_operator.plan.report.status import new_status
from dtj_operator.plan.snapshot import Gone, Silence
from tests.support.builders import NOW, JobBuilder, at, job, pod

param = pytest.param


def node(name: str, **fields: Any) -> NodeView:
    return NodeView(name=name, **fields)


def away(name: str, *, for_s: float = 40) -> NodeView:
    return node(name, ready=False, away_since=NOW - for_s)


def cluster(*changed: NodeView, count: int = 4) -> dict[str, NodeView]:
    """Nodes n0, n1, ..., ready unless changed."""
    return {f"n{i}": node(f"n{i}") for i in range(count)} | {view.name: view for view in changed}


def on_nodes(count: int) -> JobBuilder:
    return (
        job()
        .replicas(count)
        .with_network()
        .running()
        .having(*(pod(i).running().on(f"n{i}") for i in range(count)))
    )


TWO = on_nodes(2)
LOST = TWO.seeing(nodes=cluster(away("n1")))


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        param(TWO, False, id="without permission to read nodes none is lost"),
        param(TWO.seeing(nodes=cluster()), False, id="ready"),
        param(LOST, True, id="NotReady for long enough"),
        param(TWO.seeing(nodes=cluster(away("n1", for_s=39))), False, id="not yet"),
        param(LOST.recovery(nodeLostSeconds=41), False, id="a higher nodeLostSeconds"),
        param(LOST.recovery(nodeLostSeconds="Never"), False, id="turned off"),
        param(TWO.seeing(nodes=cluster(away("n3"))), False, id="another node"),
        param(
            TWO.seeing(nodes={name: away(name) for name in ("n0", "n1")}),
            False,
            id="if no node is ready, the control plane has lost contact",
        ),
        param(TWO.seeing(nodes=cluster(count=1), gone_since={"n1": NOW - 40}), True, id="gone"),
        param(TWO.seeing(nodes=cluster(count=1), gone_since={"n1": NOW - 39}), False, id="gone, not yet"),
        param(TWO.seeing(nodes=cluster(count=1)), False, id="never seen: left to the pod garbage collector"),
        param(LOST.but(pod(1).crashed(1).on("n1")), False, id="its pod had failed before"),
        param(LOST.but(pod(1).succeeded().on("n1")), False, id="its pod had succeeded"),
        param(
            LOST.but(pod(1).running().on("n1").placed(NOW - 10)),
            False,
            id="a pod that was bound to it recently",
        ),
    ],
)
def test_node_loss(given: JobBuilder, lost: bool) -> None:
    fault = blame.first_fault(given.snapshot())

    assert (fault is not None and fault.reason == "NodeLost") is lost


def lease(*, ago: float = 41, unchanged: float = 15) -> NodeLease:
    return NodeLease(renewed_at=NOW - ago, duration_s=40, unchanged_s=unchanged)


def silent(*replicas: int, since: float = 20) -> JobBuilder:
    """Replica 0's agent gets no heartbeat from these replicas."""
    known = TWO.seeing(nodes=cluster())
    return known.answering(missing=tuple(SilentReplica(replica=i, seconds=since) for i in replicas))


SILENT = silent(1)
REPLICA_0_SILENT = TWO.seeing(nodes=cluster(), coordinator_silence=Silence(since=NOW - 179))
EXPIRED = {"n1": lease()}


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        param(SILENT.seeing(leases=EXPIRED), [1], id="a silent agent and an expired Lease"),
        param(SILENT, [], id="a Lease that does not exist or cannot be read"),
        param(SILENT.seeing(leases={"n1": lease(ago=39)}), [], id="the Lease has not expired yet"),
        param(
            SILENT.seeing(leases={"n1": lease(ago=9, unchanged=9)}),
            [],
            id="the Lease is renewed: the agent hangs",
        ),
        param(
            SILENT.seeing(leases={"n1": lease(ago=3600, unchanged=12)}),
            [],
            id="a clock an hour behind, the Lease renewed meanwhile",
        ),
        param(
            SILENT.seeing(leases={"n1": lease(ago=-3600, unchanged=600)}),
            [],
            id="a clock an hour ahead: left to NotReady",
        ),
        param(silent().seeing(leases=EXPIRED), [], id="the agent answers: only the kubelet is dead"),
        param(silent(0).seeing(leases=EXPIRED), [], id="another replica is silent"),
        param(silent(1, since=180).seeing(leases=EXPIRED), [], id="silent for too long"),
        param(SILENT.seeing(leases=EXPIRED, now=NOW + 160), [], id="an answer that is old"),
        param(SILENT.seeing(leases=EXPIRED).recovery(nodeLostSeconds="Never"), [], id="turned off"),
        param(
            SILENT.seeing(leases=EXPIRED, nodes={name: away(name, for_s=1) for name in ("n0", "n1")}),
            [],
            id="no node is ready",
        ),
        param(SILENT.seeing(leases=EXPIRED, nodes=None), [], id="no permission to read nodes"),
        param(
            SILENT.seeing(leases=EXPIRED).but(pod(1).running().on("n1").placed(NOW - 39)),
            [],
            id="a pod that was bound since then",
        ),
        param(
            SILENT.seeing(leases=EXPIRED).but(pod(1).crashed(1).on("n1")), [], id="its pod had failed before"
        ),
        param(REPLICA_0_SILENT.seeing(leases={"n0": lease()}), [0], id="replica 0 itself"),
        param(REPLICA_0_SILENT.seeing(leases={"n0": lease()}, now=NOW + 1), [], id="replica 0, for too long"),
        param(
            REPLICA_0_SILENT.seeing(leases=EXPIRED),
            [],
            id="a silent replica 0 proves nothing about the others",
        ),
        param(
            REPLICA_0_SILENT.but(pod(1).running().on("n0")).seeing(leases={"n0": lease()}),
            [0, 1],
            id="the pods on its node are lost with replica 0",
        ),
    ],
)
def test_silent_agent_and_expired_lease_mean_a_lost_node(given: JobBuilder, lost: list[int]) -> None:
    s = given.snapshot()

    assert [i for i, view in s.current.items() if s.lost(view) and not s.failed(view)] == lost


def test_message_of_a_node_lost_by_silence_and_lease() -> None:
    verdict = restart(SILENT.seeing(leases={"n1": lease(ago=47.2)}).recovery(maxRestarts=0).snapshot())

    assert isinstance(verdict, Restart)
    assert (verdict.counts, verdict.fault.node, verdict.fault.reason) == (False, "n1", "NodeLost")
    assert verdict.fault.message == "the agent is silent and the node's Lease expired 7 s ago"


@pytest.mark.parametrize(
    ("given", "nodes", "in_s"),
    [
        param(SILENT, ("n1",), 4, id="a Lease that was not read yet"),
        param(SILENT.seeing(leases={"n1": lease(ago=38)}), ("n1",), 2, id="a Lease that is about to expire"),
        param(
            SILENT.seeing(leases={"n1": lease(unchanged=12)}),
            ("n1",),
            3,
            id="a Lease unchanged for almost long enough",
        ),
        param(silent(), (), None, id="no silent agent"),
        param(SILENT.was("Succeeded").having(pod(1).succeeded().on("n1")), (), None, id="its pod has ended"),
        param(SILENT.recovery(nodeLostSeconds="Never"), (), None, id="turned off"),
    ],
)
def test_leases_are_read_often_but_only_of_nodes_with_silent_agents(
    given: JobBuilder, nodes: tuple[str, ...], in_s: float | None
) -> None:
    assert given.snapshot().nodes_to_check == nodes
    assert plan(given.snapshot()).requeue_at == (None if in_s is None else NOW + in_s)


RECOVERING = {"failure": {"reason": "NodeLost", "node": "n1"}, "avoidedNodes": [{"node": "n1", "at": at(0)}]}
RACK = RECOVERING | {"avoidedNodes": [{"node": "n1", "at": at(-60)}, {"node": "n0", "at": at(-60)}]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        param(
            TWO.seeing(nodes=cluster(), leases=EXPIRED).was("Recovering", attempt=1, **RECOVERING),
            [("digits-0", None), ("digits-1", 0)],
            id="a new attempt: no agent answers for the old one",
        ),
        param(
            REPLICA_0_SILENT.seeing(leases=EXPIRED, coordinator_silence=None)
            .recovery(scope="Replica")
            .was("Recovering", memory={"replacing": {"1": "uid-digits-1-0"}}, **RECOVERING),
            [("digits-1", 0)],
            id="a replica",
        ),
        param(
            TWO.seeing(nodes=cluster(), leases=EXPIRED | {"n0": lease()}).was(
                "Recovering", attempt=1, **RACK
            ),
            [("digits-0", 0), ("digits-1", 0)],
            id="two nodes at once",
        ),
    ],
)
def test_pods_on_a_node_lost_by_silence_and_lease_are_force_deleted(
    given: JobBuilder, expected: list[Any]
) -> None:
    decision = plan(given.snapshot())

    assert [(a.pod.name, a.grace_s) for a in decision.actions if isinstance(a, DeletePod)] == expected


@pytest.mark.parametrize(
    ("given", "avoided"),
    [
        param(job().was("Recovering", **RECOVERING), ("n1",), id="just lost"),
        param(
            job().was("Recovering", **RECOVERING).recovery(avoidNodeAfterFaults="Never"),
            ("n1",),
            id="none is avoided because of faults",
        ),
        param(
            job().was("Recovering", **RACK).recovery(avoidNodeAfterFaults="Never"),
            ("n1", "n0"),
            id="two at once",
        ),
        param(
            job().was("Recovering", **RACK, lastTransitionTime=at(-30)),
            ("n1",),
            id="the other node lost long before",
        ),
        param(job().was("Running", **RECOVERING), (), id="the job has recovered"),
        param(
            job().pod_spec(nodeName="n1").was("Recovering", **RECOVERING),
            (),
            id="the template names the node",
        ),
        param(job().was("Recovering", failure=RECOVERING["failure"]), (), id="the nodes are allowed again"),
    ],
)
def test_just_lost_node_is_avoided_although_the_scheduler_thinks_it_is_ready(
    given: JobBuilder, avoided: tuple[str, ...]
) -> None:
    assert avoid.avoided(given.seeing(nodes=cluster(count=2)).snapshot()).required == avoided


def test_new_pods_avoid_all_nodes_that_were_lost_at_once() -> None:
    given = silent(0, 1).seeing(leases=EXPIRED | {"n0": lease(ago=35)})
    s = given.snapshot()
    after = given.stored(new_status(s, restart(s)))

    assert avoid.avoided(after.snapshot()).required == ("n1", "n0")


def test_lost_node_is_named_and_not_counted() -> None:
    verdict = restart(LOST.recovery(maxRestarts=0).snapshot())

    assert isinstance(verdict, Restart)
    assert (verdict.counts, verdict.fault.node, verdict.fault.replica) == (False, "n1", 1)
    assert verdict.fault.sentence.endswith("NodeLost: the node was NotReady for 40 s")


STUCK = pod(1).running().on("n1").deleting()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        param(LOST.was("Recovering", attempt=1), [("digits-0", 5), ("digits-1", 0)], id="a new attempt"),
        param(LOST.was("Recovering", attempt=1).having(STUCK), [("digits-1", 0)], id="already terminating"),
        param(LOST.wants(suspend=True).was("Suspended").having(STUCK), [("digits-1", 0)], id="suspended"),
        param(LOST.deleted().having(STUCK), [("digits-1", 0)], id="a job that is being deleted"),
        param(LOST.deleted().having(pod(1).running().on("n1")), [("digits-1", 0)], id="not terminating yet"),
        param(LOST.was("Succeeded").having(STUCK), [("digits-1", 0)], id="finished"),
        param(LOST.deleted().having(STUCK.owned_by("")), [], id="a pod that no job owns"),
        param(
            TWO.deleted().seeing(nodes=cluster()).having(STUCK),
            [],
            id="its node is healthy: its own grace period",
        ),
    ],
)
def test_nothing_waits_for_a_dead_kubelet(given: JobBuilder, expected: list[tuple[str, int | None]]) -> None:
    decision = plan(given.snapshot())
    deleted = [(a.pod.name, a.grace_s) for a in decision.actions if isinstance(a, DeletePod)]

    assert deleted == expected


def left_of_a_job(nodes: dict[str, NodeView], **fields: Any) -> Gone:
    return Gone(pods=(STUCK.pod,), nodes=nodes, now=NOW, monotonic=NOW, **fields)


@pytest.mark.parametrize(("for_s", "expected"), [(40, 0), (39, None)])
def test_children_of_a_deleted_job_are_force_deleted_too(for_s: float, expected: int | None) -> None:
    decision = plan_gone(left_of_a_job(cluster(away("n1", for_s=for_s)), recovery=Recovery()))

    assert decision.actions == (() if expected is None else (DeletePod(STUCK.pod, expected),))
    assert decision.requeue_at == (NOW + 1 if expected is None else None)


@pytest.mark.parametrize(
    "fields",
    [
        param({"recovery": Recovery(node_lost_s=None)}, id="nodeLostSeconds was Never"),
        param({}, id="the operator started after the deletion, so it does not know"),
    ],
)
def test_nothing_of_a_deleted_job_is_forced_that_it_had_turned_off(fields: dict[str, Any]) -> None:
    assert plan_gone(left_of_a_job(cluster(away("n1")), **fields)).actions == ()


DYING = (
    TWO.seeing(nodes=cluster())
    .recovery(scope="Replica")
    .was("Recovering", memory={"replacing": {"1": pod(1).pod.uid}})
)


def dying(for_s: float) -> JobBuilder:
    """Replica 1 has been terminating on a ready node for this long after it should have been gone."""
    return DYING.but(pod(1).running().on("n1").overdue(for_s))


@pytest.mark.parametrize(
    ("given", "forced"),
    [
        param(dying(290), True, id="for long enough"),
        param(dying(289), False, id="not yet"),
        param(dying(50).recovery(terminationSeconds=60), True, id="a shorter terminationSeconds"),
        param(dying(9).recovery(terminationSeconds=1), False, id="first the status says that it is late"),
        param(dying(9999).recovery(terminationSeconds="Never"), False, id="turned off"),
        param(dying(290).seeing(nodes=None), False, id="no permission to read nodes"),
        param(
            dying(290).seeing(nodes=cluster(away("n1", for_s=1))),
            False,
            id="not ready: nodeLostSeconds counts",
        ),
        param(
            DYING.but(pod(1).running().on("n1").overdue(290).held_by("example.com/audit")),
            False,
            id="a finalizer keeps it: that would not help",
        ),
        param(dying(290).was("Recovering", attempt=1), True, id="of an older attempt"),
        param(dying(290).wants(suspend=True).was("Suspended"), True, id="suspended"),
        param(dying(290).was("Succeeded"), True, id="finished"),
        param(dying(290).deleted(), True, id="a job that is being deleted"),
    ],
)
def test_pod_that_does_not_terminate_on_a_ready_node_is_force_deleted(
    given: JobBuilder, forced: bool
) -> None:
    deleted = [(a.pod.name, a.grace_s) for a in plan(given.snapshot()).actions if isinstance(a, DeletePod)]

    assert (("digits-1", 0) in deleted) is forced


@pytest.mark.parametrize(("late_s", "in_s"), [(-1, 1), (0, 290), (289, 1), (290, None)])
def test_job_is_requeued_when_a_terminating_pod_is_overdue_and_when_it_is_forced(
    late_s: float, in_s: float | None
) -> None:
    assert plan(dying(late_s).snapshot()).requeue_at == (None if in_s is None else NOW + in_s)


@pytest.mark.parametrize(
    "given",
    [
        param(TWO.was("Recovering", attempt=1), id="of an older attempt"),
        param(TWO.wants(suspend=True).was("Suspended", attempt=1), id="of a suspended job"),
        param(TWO.deleted(), id="of a job that is being deleted"),
    ],
)
def test_job_is_requeued_for_pods_that_it_deletes_because_no_event_shows_that_one_does_not_end(
    given: JobBuilder,
) -> None:
    decision = plan(given.snapshot())

    assert decision.deleted_pods
    assert decision.requeue_at == NOW + 10


@pytest.mark.parametrize("ahead_s", [60, -60])
@pytest.mark.parametrize(("for_s", "lost"), [(39, False), (40, True)])
def test_clock_of_another_machine_does_not_decide_when_a_node_is_lost(
    ahead_s: float, for_s: float, lost: bool
) -> None:
    """The operator's clock runs ahead of the cluster's, or behind it; both signs of a loss are 39 s old."""
    turned = NOW - for_s - ahead_s
    bound = pod(1).running().on("n1").placed(turned).seen(bound=NOW - for_s)
    given = TWO.but(bound).seeing(
        nodes=cluster(node("n1", ready=False, away_since=NOW - 3600, turned_at=turned))
    )

    assert (blame.first_fault(given.snapshot()) is not None) is lost


def test_job_is_requeued_when_its_node_becomes_lost() -> None:
    assert plan(TWO.seeing(nodes=cluster(away("n1", for_s=30))).snapshot()).requeue_at == NOW + 10
