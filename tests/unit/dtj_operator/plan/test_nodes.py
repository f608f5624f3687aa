"""Lost nodes: by the word of Kubernetes, by that of two witnesses, and what is done about them."""

from typing import Any

import pytest

from dtj_operator.kube.nodes import NodeLease, NodeView
from dtj_operator.plan import blame
from dtj_operator.plan.actions import DeletePod, Restart
from dtj_operator.plan.planner import plan, plan_gone
from dtj_operator.plan.policies import avoid
from dtj_operator.plan.policies.restart import restart
from dtj_operator.plan.snapshot import Gone, SilentReplica
from dtj_operator.plan.status import new_status
from tests.support.builders import NOW, JobBuilder, at, job, pod

param = pytest.param


def node(name: str, **fields: Any) -> NodeView:
    return NodeView(name=name, **fields)


def away(name: str, *, for_s: float = 40) -> NodeView:
    return node(name, ready=False, not_ready_since=NOW - for_s)


def cluster(*changed: NodeView, count: int = 4) -> dict[str, NodeView]:
    """Nodes n0, n1, ..., ready unless said otherwise."""
    return {f"n{i}": node(f"n{i}") for i in range(count)} | {view.name: view for view in changed}


def on_nodes(count: int) -> JobBuilder:
    return (
        job()
        .replicas(count)
        .settled()
        .running()
        .having(*(pod(i).running().on(f"n{i}") for i in range(count)))
    )


TWO = on_nodes(2)
LOST = TWO.seeing(nodes=cluster(away("n1")))


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        param(TWO, False, id="nodes that may not be read are never lost"),
        param(TWO.seeing(nodes=cluster()), False, id="ready"),
        param(LOST, True, id="away for long enough"),
        param(TWO.seeing(nodes=cluster(away("n1", for_s=39))), False, id="not yet"),
        param(LOST.recovery(nodeLostSeconds=41), False, id="the user is more patient"),
        param(LOST.recovery(nodeLostSeconds=0), False, id="turned off"),
        param(TWO.seeing(nodes=cluster(away("n3"))), False, id="another node"),
        param(
            TWO.seeing(nodes={name: away(name) for name in ("n0", "n1")}),
            False,
            id="where none is ready it is the control plane that is blind",
        ),
        param(TWO.seeing(nodes=cluster(count=1), gone_since={"n1": NOW - 40}), True, id="gone"),
        param(TWO.seeing(nodes=cluster(count=1), gone_since={"n1": NOW - 39}), False, id="gone, not yet"),
        param(TWO.seeing(nodes=cluster(count=1)), False, id="never seen: the cluster's collector knows"),
        param(LOST.but(pod(1).crashed(1).on("n1")), False, id="its pod had failed before"),
        param(LOST.but(pod(1).succeeded().on("n1")), False, id="its pod was done"),
        param(LOST.but(pod(1).running().on("n1").placed(NOW - 10)), False, id="a pod that came to it lately"),
    ],
)
def test_node_loss(given: JobBuilder, lost: bool) -> None:
    fault = blame.first_fault(given.snapshot())

    assert (fault is not None and fault.reason == "NodeLost") is lost


def lease(*, ago: float = 41, unchanged: float = 15) -> NodeLease:
    return NodeLease(renewed_at=NOW - ago, duration_s=40, unchanged_s=unchanged)


def silent(*replicas: int, since: float = 20) -> JobBuilder:
    """Replica 0's agent does not hear of these."""
    known = TWO.seeing(nodes=cluster())
    return known.answering(silent_replicas=tuple(SilentReplica(replica=i, seconds=since) for i in replicas))


SILENT = silent(1)
MUTE = TWO.seeing(nodes=cluster(), coordinator_silent=True)
EXPIRED = {"n1": lease()}


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        param(SILENT.seeing(leases=EXPIRED), [1], id="both witnesses"),
        param(SILENT, [], id="a lease that there is not or that may not be read"),
        param(SILENT.seeing(leases={"n1": lease(ago=39)}), [], id="the kubelet is not late yet"),
        param(
            SILENT.seeing(leases={"n1": lease(ago=9, unchanged=9)}),
            [],
            id="the kubelet is well: a wedged agent",
        ),
        param(
            SILENT.seeing(leases={"n1": lease(ago=3600, unchanged=12)}),
            [],
            id="a clock that is an hour late, the lease renewed while we look",
        ),
        param(
            SILENT.seeing(leases={"n1": lease(ago=-3600, unchanged=600)}),
            [],
            id="a clock that is an hour fast: Kubernetes will tell",
        ),
        param(silent().seeing(leases=EXPIRED), [], id="the agent is there: only the kubelet is dead"),
        param(silent(0).seeing(leases=EXPIRED), [], id="another replica is missing"),
        param(silent(1, since=180).seeing(leases=EXPIRED), [], id="missing for long"),
        param(SILENT.seeing(leases=EXPIRED, now=NOW + 160), [], id="an answer that is old"),
        param(SILENT.answering(attempt=7).seeing(leases=EXPIRED), [], id="said of another attempt"),
        param(SILENT.seeing(leases=EXPIRED).recovery(nodeLostSeconds=0), [], id="turned off"),
        param(
            SILENT.seeing(leases=EXPIRED, nodes={name: away(name, for_s=1) for name in ("n0", "n1")}),
            [],
            id="no node is ready",
        ),
        param(SILENT.seeing(leases=EXPIRED, nodes=None), [], id="nodes that may not be read"),
        param(
            SILENT.seeing(leases=EXPIRED).but(pod(1).running().on("n1").placed(NOW - 39)),
            [],
            id="a pod that came to it since",
        ),
        param(
            SILENT.seeing(leases=EXPIRED).but(pod(1).crashed(1).on("n1")), [], id="its pod had failed before"
        ),
        param(MUTE.seeing(leases={"n0": lease()}), [0], id="replica 0 itself"),
        param(MUTE.seeing(leases=EXPIRED), [], id="of the others a silent replica 0 says nothing"),
        param(
            MUTE.but(pod(1).running().on("n0")).seeing(leases={"n0": lease()}),
            [0, 1],
            id="but those on its node are lost with it",
        ),
    ],
)
def test_agents_and_lease_together_tell_of_a_lost_node(given: JobBuilder, lost: list[int]) -> None:
    s = given.snapshot()

    assert [i for i, view in s.current.items() if s.lost(view) and not s.failed(view)] == lost


def test_what_the_witnesses_saw_is_told() -> None:
    verdict = restart(SILENT.seeing(leases={"n1": lease(ago=47.2)}).recovery(maxRestarts=0).snapshot())

    assert isinstance(verdict, Restart)
    assert (verdict.counts, verdict.fault.node, verdict.fault.reason) == (False, "n1", "NodeLost")
    assert verdict.fault.message == "the agent is silent and the node's Lease expired 7 s ago"


@pytest.mark.parametrize(
    ("given", "nodes", "in_s"),
    [
        param(SILENT, ("n1",), 4, id="a lease that was not read yet"),
        param(SILENT.seeing(leases={"n1": lease(ago=38)}), ("n1",), 2, id="one that is about to expire"),
        param(SILENT.seeing(leases={"n1": lease(unchanged=12)}), ("n1",), 3, id="one that is nearly certain"),
        param(silent(), (), None, id="nobody is in doubt"),
        param(SILENT.was("Succeeded").having(pod(1).succeeded().on("n1")), (), None, id="its pod has ended"),
        param(SILENT.recovery(nodeLostSeconds=0), (), None, id="turned off"),
    ],
)
def test_leases_are_read_only_of_nodes_in_doubt_and_then_often(
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
            id="a new attempt: nobody is asked about the old one any more",
        ),
        param(
            MUTE.seeing(leases=EXPIRED, coordinator_silent=False)
            .recovery(scope="Replica")
            .was("Recovering", replacing=[{"replica": 1, "uid": "uid-digits-1-0"}], **RECOVERING),
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
def test_verdict_of_the_witnesses_is_carried_out(given: JobBuilder, expected: list[Any]) -> None:
    decision = plan(given.snapshot())

    assert [(a.pod.name, a.grace_s) for a in decision.actions if isinstance(a, DeletePod)] == expected


@pytest.mark.parametrize(
    ("given", "avoided"),
    [
        param(job().was("Recovering", **RECOVERING), ("n1",), id="lost just now"),
        param(
            job().was("Recovering", **RECOVERING).recovery(avoidNodeAfter=0), ("n1",), id="nothing else is"
        ),
        param(job().was("Recovering", **RACK).recovery(avoidNodeAfter=0), ("n1", "n0"), id="two at once"),
        param(
            job().was("Recovering", **RACK, lastTransitionTime=at(-30)), ("n1",), id="the other long before"
        ),
        param(job().was("Running", **RECOVERING), (), id="the job has recovered"),
        param(
            job().pod_spec(nodeName="n1").was("Recovering", **RECOVERING),
            (),
            id="the template names the node",
        ),
        param(job().was("Recovering", failure=RECOVERING["failure"]), (), id="nothing fitted elsewhere"),
    ],
)
def test_node_that_was_just_lost_is_avoided_though_the_scheduler_takes_it_for_well(
    given: JobBuilder, avoided: tuple[str, ...]
) -> None:
    assert avoid.avoided(given.seeing(nodes=cluster(count=2)).snapshot()) == avoided


def test_new_pods_avoid_all_nodes_that_were_lost_at_once() -> None:
    given = silent(0, 1).seeing(leases=EXPIRED | {"n0": lease(ago=35)})
    s = given.snapshot()
    after = given.stored(new_status(s, restart(s)))

    assert avoid.avoided(after.snapshot()) == ("n1", "n0")


def test_a_lost_node_costs_nothing_and_is_named() -> None:
    verdict = restart(LOST.recovery(maxRestarts=0).snapshot())

    assert isinstance(verdict, Restart)
    assert (verdict.counts, verdict.fault.node, verdict.fault.replica) == (False, "n1", 1)
    assert verdict.fault.sentence.endswith("NodeLost: the node was NotReady for 40 s")


STUCK = pod(1).running().on("n1").deleting()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        param(LOST.was("Recovering", attempt=1), [("digits-0", 5), ("digits-1", 0)], id="a new attempt"),
        param(LOST.was("Recovering", attempt=1).having(STUCK), [("digits-1", 0)], id="told to go before"),
        param(LOST.wants(suspend=True).was("Suspended").having(STUCK), [("digits-1", 0)], id="suspended"),
        param(LOST.deleted().having(STUCK), [("digits-1", 0)], id="a job that is being deleted"),
        param(LOST.deleted().having(pod(1).running().on("n1")), [("digits-1", 0)], id="not told yet"),
        param(LOST.was("Succeeded").having(STUCK), [("digits-1", 0)], id="finished"),
        param(LOST.deleted().having(STUCK.owned_by("")), [], id="a pod that no job owns"),
        param(TWO.deleted().seeing(nodes=cluster()).having(STUCK), [], id="its node is well: its own grace"),
    ],
)
def test_nothing_waits_for_a_dead_kubelet(given: JobBuilder, expected: list[tuple[str, int | None]]) -> None:
    decision = plan(given.snapshot())
    deleted = [(a.pod.name, a.grace_s) for a in decision.actions if isinstance(a, DeletePod)]

    assert deleted == expected


@pytest.mark.parametrize(("for_s", "expected"), [(40, 0), (39, None)])
def test_children_of_a_job_that_is_gone_are_let_go_too(for_s: float, expected: int | None) -> None:
    nodes = cluster(away("n1", for_s=for_s))
    gone = Gone(namespace="team-a", name="digits", pods=(STUCK.pod,), nodes=nodes, now=NOW)
    decision = plan_gone(gone)

    assert decision.actions == (() if expected is None else (DeletePod(STUCK.pod, expected),))
    assert decision.requeue_at == (NOW + 1 if expected is None else None)


def test_the_end_of_patience_is_looked_at_without_any_news() -> None:
    assert plan(TWO.seeing(nodes=cluster(away("n1", for_s=30))).snapshot()).requeue_at == NOW + 10
