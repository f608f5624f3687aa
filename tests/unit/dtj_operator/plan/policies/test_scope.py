"""What a recovery restarts: the verdict, what the status records, and what the next reconcile does."""

import pytest

from dtj_operator.model import ranges
from dtj_operator.model.agent_status import Incident
from dtj_operator.plan.actions import AwaitCause, CreatePod, DeletePod, Fail, Restart, UseReplicaScope
from dtj_operator.plan.planner import plan
from dtj_operator.plan.policies.restart import MAX_REPLACED, restart
from dtj_operator.plan.policies.scope import use_replica_scope
from dtj_operator.plan.report.status import events, new_status
from tests.support.builders import NOW, JobBuilder, PodBuilder, at, job, pod

param = pytest.param
THREE = job().replicas(3).with_network().recovery(scope="Replica").running()
AUTO = job().replicas(3).with_network().running()
AGENTS = AUTO.was("Running", memory={"rejoins": True})
CRASHED = THREE.but(pod(1).crashed())


def replaced(given: JobBuilder) -> list[int] | str:
    """The indices that the verdict replaces, or "all"."""
    verdict = restart(given.snapshot())
    assert isinstance(verdict, Restart)
    return "all" if verdict.replaces is None else [index for index, _ in verdict.replaces]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        param(CRASHED, [1], id="the failed pod"),
        param(CRASHED.recovery(scope="Job"), "all", id="all pods with scope Job"),
        param(
            CRASHED.recovery(scope="Auto"),
            "all",
            id="all pods with Auto, before the agents reported that they can recover in place",
        ),
        param(
            CRASHED.recovery(scope="Auto").was("Running", memory={"rejoins": True}),
            [1],
            id="the failed pod with Auto, once the agents reported it",
        ),
        param(
            CRASHED.but(pod(2).crashed(76)),
            [1, 2],
            id="two pods that fail before one reconcile are one incident",
        ),
        param(THREE.but(pod(1).running().deleting()), [1], id="an evicted pod"),
        param(THREE.without(1), [1], id="a pod that vanished"),
        param(THREE.without(1).but(pod(0).crashed()), [0, 1], id="both"),
        param(THREE.but(*(pod(i).crashed(76) for i in range(3))), "all", id="no survivor is left"),
        param(
            THREE.but(pod(0).crashed(), pod(1).succeeded(), pod(2).succeeded()),
            "all",
            id="finished replicas are not survivors",
        ),
        param(
            AGENTS.but(pod(0).crashed(), pod(1).succeeded()),
            "all",
            id="the next replica 0 would wait for a replica that is done",
        ),
        param(
            AGENTS.was("Running", memory={"rejoins": True, "done": "1"})
            .without(1)
            .but(pod(0).running().deleting()),
            "all",
            id="likewise, once its pod is gone",
        ),
        param(
            THREE.was("Running", memory={"rejoins": True}).but(pod(0).crashed(), pod(1).succeeded()),
            "all",
            id="likewise, if only an earlier process of the operator knows that there are agents",
        ),
        param(AGENTS.but(pod(2).crashed(), pod(1).succeeded()), [2], id="replica 0 knows that one is done"),
        param(
            THREE.but(pod(0).crashed(), pod(1).succeeded()),
            [0],
            id="a program without agents, whose replicas end when they like",
        ),
        param(
            job().replicas(1).recovery(scope="Replica").running().but(pod(0).crashed()),
            "all",
            id="a job of one pod",
        ),
        param(
            THREE.elastic(1, 3).but(
                pod(0).crashed(), pod(1).crashed(), pod(2).unschedulable(since=NOW - 121)
            ),
            "all",
            id="an unschedulable pod is not a survivor",
        ),
    ],
)
def test_what_is_replaced(given: JobBuilder, expected: list[int] | str) -> None:
    assert replaced(given) == expected


@pytest.mark.parametrize(("broken", "whole_job"), [(MAX_REPLACED, False), (MAX_REPLACED + 1, True)])
def test_too_many_failed_pods_restart_the_whole_job_so_that_the_status_stays_small(
    broken: int, whole_job: bool
) -> None:
    many = (
        job()
        .replicas(300)
        .recovery(scope="Replica")
        .running()
        .but(*(pod(i).crashed() for i in range(broken)))
    )

    assert (replaced(many) == "all") is whole_job


def test_a_lost_peer_waits_for_its_cause_with_either_scope() -> None:
    verdict = restart(THREE.but(pod(1).crashed(76, at=NOW - 1)).snapshot())

    assert verdict == AwaitCause(until=NOW + 4)


def test_a_replacement_keeps_the_attempt_and_is_counted_once() -> None:
    snapshot = CRASHED.snapshot()
    after = new_status(snapshot, restart(snapshot))

    assert (after["phase"], after["attempt"], after["restarts"]["counted"]) == ("Recovering", 0, 1)
    assert after["memory"]["replacing"] == {"1": pod(1).pod.uid}
    assert after["lastTransitionTime"] == at(0)
    # The next reconcile acts on what is written, and does not count again.
    decision = plan(CRASHED.stored(after).snapshot())
    assert decision.verdict is None
    assert decision.actions == (DeletePod(pod(1).crashed().pod, 5),)


EVICTED = THREE.but(pod(1).running().deleting())
STOPPED = pod(0).reported(75, reason="Stopped")


def taken_away(*, then: JobBuilder, after_s: float = 2) -> JobBuilder:
    """The user deletes pod 1; the next snapshot is `then`."""
    snapshot = EVICTED.snapshot()
    return then.stored(new_status(snapshot, restart(snapshot))).seeing(now=NOW + after_s)


def taken_away_and_replaced(*, after_s: float = 2) -> JobBuilder:
    """The job ran again when the rank of another pod reached the agreed stop."""
    replaced = taken_away(then=THREE.but(pod(1).running().with_uid("young")))
    running = new_status(replaced.snapshot(), None)
    assert running["phase"] == "Running"
    return replaced.stored(running).but(STOPPED).seeing(now=NOW + after_s)


@pytest.mark.parametrize(
    ("given", "disruptions"),
    [
        param(taken_away(then=EVICTED.but(STOPPED)), 1, id="another rank stops with it"),
        param(taken_away_and_replaced(), 1, id="after the pod was replaced"),
        param(taken_away_and_replaced(after_s=60), 2, id="long after the pod was replaced"),
        param(taken_away(then=THREE.but(pod(1).with_uid("young"), STOPPED)), 1, id="a little later"),
        param(
            taken_away(then=EVICTED.but(STOPPED, pod(2).reported(75, reason="Stopped"))),
            1,
            id="all stop with it",
        ),
        param(taken_away(then=THREE.but(pod(1).with_uid("young"), STOPPED), after_s=60), 2, id="much later"),
        param(taken_away(then=EVICTED.but(pod(0).running().deleting())), 2, id="another is deleted"),
        param(
            taken_away(then=EVICTED.but(STOPPED))
            .pod_spec(terminationGracePeriodSeconds=120)
            .seeing(now=NOW + 100),
            1,
            id="within the pod's grace period",
        ),
        param(
            THREE.was("Recovering", failure={"reason": "Exception", "exitCode": 1, "at": at(-1)}).but(
                STOPPED
            ),
            1,
            id="after a crash it is a new incident",
        ),
    ],
)
def test_ranks_that_stop_together_are_one_disruption(given: JobBuilder, disruptions: int) -> None:
    snapshot = given.snapshot()
    verdict = restart(snapshot)
    after = new_status(snapshot, verdict)

    assert isinstance(verdict, Restart)
    assert (after["restarts"]["disruptions"], after["restarts"]["counted"]) == (disruptions, 0)
    assert bool(events(snapshot, verdict, after)) is (not verdict.same_incident)


def test_first_of_the_ranks_that_stop_together_is_reported() -> None:
    snapshot = taken_away(then=EVICTED.but(STOPPED)).snapshot()
    before, after = snapshot.memory.raw, new_status(snapshot, restart(snapshot))

    assert (after["failure"], after["message"]) == (before["failure"], before["message"])
    assert after["conditions"][1] == before["conditions"][1]
    assert list(after["memory"]["replacing"]) == ["0", "1"]


def test_rank_that_stops_after_the_first_was_replaced_is_what_the_job_waits_for() -> None:
    snapshot = taken_away_and_replaced().snapshot()
    verdict = restart(snapshot)
    after = new_status(snapshot, verdict)

    assert isinstance(verdict, Restart)
    assert (after["phase"], after["message"]) == ("Recovering", verdict.fault.sentence)
    assert after["failure"] == snapshot.memory.failure, "the first is still to blame"
    healthy = next(c for c in after["conditions"] if c["type"] == "Healthy")
    assert (healthy["status"], healthy["message"]) == ("False", verdict.fault.sentence)


REPLACED = {"1": pod(1).pod.uid}
REPLACING = THREE.was("Recovering", lastTransitionTime=at(-9), memory={"replacing": REPLACED})
YOUNG = pod(1).with_uid("young")


def test_replacement_is_created_after_the_old_pod_is_gone() -> None:
    made = plan(REPLACING.without(1).snapshot()).actions

    assert [a.body["metadata"]["name"] for a in made if isinstance(a, CreatePod)] == ["digits-1"]
    assert len(made) == 1


def test_the_replacement_waits_for_the_back_off() -> None:
    waiting = REPLACING.without(1).recovery(scope="Replica", backoffSeconds=100)
    decision = plan(waiting.snapshot())

    assert decision.actions == ()
    assert decision.requeue_at is not None
    assert NOW + 70 <= decision.requeue_at <= NOW + 112


def test_second_incident_starts_its_own_back_off() -> None:
    snapshot = REPLACING.without(1).but(pod(2).crashed()).snapshot()
    after = new_status(snapshot, restart(snapshot))

    assert list(after["memory"]["replacing"]) == ["1", "2"]
    assert (after["restarts"]["counted"], after["lastTransitionTime"]) == (1, at(0))


def test_replaced_pod_is_forgotten_once_its_replacement_exists() -> None:
    still = new_status(REPLACING.without(1).snapshot(), None)
    over = new_status(REPLACING.but(YOUNG).snapshot(), None)

    assert list(still["memory"]["replacing"]) == ["1"]
    assert "replacing" not in over.get("memory", {})


def test_the_job_runs_again_when_the_replacement_does() -> None:
    assert new_status(REPLACING.but(YOUNG).snapshot(), None)["phase"] == "Recovering"
    assert new_status(REPLACING.but(YOUNG.running()).snapshot(), None)["phase"] == "Running"


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        param(AUTO, None, id="no answer"),
        param(AUTO.answering(step=1), None, id="an agent that cannot recover in place"),
        param(AUTO.answering(rejoin=True), UseReplicaScope(), id="an agent that can"),
        param(
            AUTO.was("Running", memory={"rejoins": True}).answering(rejoin=True),
            None,
            id="already recorded",
        ),
        param(AUTO.recovery(scope="Job").answering(rejoin=True), None, id="scope Job"),
    ],
)
def test_use_replica_scope(given: JobBuilder, verdict: UseReplicaScope | None) -> None:
    assert use_replica_scope(given.snapshot()) == verdict


def test_replica_scope_is_written_before_a_fault_of_the_same_moment_is_judged() -> None:
    given = AUTO.but(pod(1).crashed()).answering(rejoin=True)
    decision = plan(given.snapshot())
    assert decision.verdict == UseReplicaScope()

    after = new_status(given.snapshot(), decision.verdict)
    assert (after["memory"]["rejoins"], after["phase"]) == (True, "Running")
    assert replaced(given.stored(after)) == [1]


def test_replica_scope_lasts_for_the_attempt_even_if_the_agent_is_silent() -> None:
    trusted = AUTO.was("Running", memory={"rejoins": True})
    assert new_status(trusted.snapshot(), None)["memory"]["rejoins"]

    snapshot = trusted.but(*(pod(i).crashed() for i in range(3))).snapshot()
    assert "rejoins" not in new_status(snapshot, restart(snapshot)).get("memory", {}), "Job"


@pytest.mark.parametrize(
    ("ended", "asked", "counted"),
    [
        param(pod(0).succeeded('{"inPlace": 2}'), None, 2, id="an agent that never answered"),
        param(pod(0).succeeded('{"inPlace": 2}'), 1, 2, id="one more since the last answer"),
        param(pod(0).reported(1, inPlace=2), 1, 2, id="before a fault"),
        param(pod(1).succeeded('{"inPlace": 2}'), None, 2, id="by another replica, which exited first"),
        param(pod(0).succeeded('{"inPlace": null}'), 1, 1, id="no number in the exit report"),
        param(pod(0).succeeded('{"inPlace": 2000000}'), 1, 1, id="an implausible number"),
    ],
)
def test_in_place_restarts_since_the_last_answer_are_counted_at_exit(
    ended: PodBuilder, asked: int | None, counted: int
) -> None:
    given = AUTO.but(ended)
    restarts = new_status((given if asked is None else given.answering(in_place=asked)).snapshot(), None)[
        "restarts"
    ]

    assert (restarts["counted"], restarts.get("inPlace", 0)) == (counted, counted)


def test_in_place_restarts_are_counted_once() -> None:
    first = AUTO.stored(new_status(AUTO.answering(in_place=2).snapshot(), None))
    again = AUTO.stored(new_status(first.answering(in_place=2).snapshot(), None))
    known = first.status["restarts"]

    assert known["counted"] == known["inPlace"] == known["withoutProgress"] == known["total"] == 2
    assert again.status["restarts"] == known
    assert new_status(again.answering(in_place=3).snapshot(), None)["restarts"]["counted"] == 3


def test_agent_that_lost_its_count_reduces_no_counter() -> None:
    known = {"restarts": {"counted": 2, "inPlace": 2}, "memory": {"inPlaceOfAttempt": 2}}
    given = AUTO.was("Running", **known).answering(in_place=0)

    assert new_status(given.snapshot(), None)["restarts"]["inPlace"] == 2


def test_new_pod_gets_the_number_of_in_place_restarts_of_its_attempt() -> None:
    known = {"counted": 3, "disruptions": 1, "withoutProgress": 0, "inPlace": 3}
    memory = {"replacing": REPLACED, "inPlaceOfAttempt": 2, "countedAt": [NOW - 86_400, NOW - 9, NOW - 9]}
    given = THREE.recovery(scope="Replica", maxRestarts=7).was(
        "Recovering", lastTransitionTime=at(-99), memory=memory, restarts=known
    )
    (made,) = (a.body for a in plan(given.without(1).snapshot()).actions if isinstance(a, CreatePod))
    env = {each["name"]: each.get("value") for each in made["spec"]["containers"][0]["env"]}

    assert (env["DTJ_MAX_RESTARTS"], env["DTJ_RESTARTS_IN_PLACE"]) == ("5", "2"), "one is a day old"
    assert env["DTJ_RESTARTS"] == "4", "the number grows with each pod of a replica"


def test_in_place_restarts_of_the_next_attempt_are_added() -> None:
    known = {"counted": 2, "disruptions": 0, "withoutProgress": 0, "inPlace": 2}
    given = AUTO.was("Running", restarts=known, memory={"inPlaceOfAttempt": 2}).but(pod(0).crashed())
    fallen = new_status(given.snapshot(), restart(given.snapshot()))
    assert fallen["restarts"]["counted"] == 3
    assert "inPlaceOfAttempt" not in fallen.get("memory", {})

    risen = AUTO.stored(fallen).answering(attempt=1, in_place=1)
    assert new_status(risen.snapshot(), None)["restarts"]["inPlace"] == 3


def test_in_place_restarts_spend_the_budget_whichever_pod_exits_first() -> None:
    given = AUTO.recovery(maxRestarts=1).but(pod(1).reported(1, inPlace=1)).snapshot()
    verdict = restart(given)

    assert isinstance(verdict, Fail)
    assert verdict.reason == "RestartBudgetSpent"
    assert new_status(given, verdict)["restarts"]["counted"] == 1


def test_restarts_older_than_the_window_are_forgotten_and_still_in_the_total() -> None:
    known = {"counted": 2, "disruptions": 0, "withoutProgress": 0}
    memory = {"countedAt": [NOW - 86_400, NOW - 7]}
    given = AUTO.was("Running", restarts=known, memory=memory).but(pod(1).crashed()).answering(in_place=1)
    snapshot = given.snapshot()
    after = new_status(snapshot, restart(snapshot))

    assert after["restarts"]["counted"] == 4
    assert after["memory"]["countedAt"] == [NOW - 7, NOW, NOW]


def test_in_place_restarts_spend_the_budget() -> None:
    spent = AUTO.recovery(maxRestarts=2).but(pod(1).crashed()).answering(in_place=2)

    assert type(restart(spent.snapshot())).__name__ == "Fail"


INCIDENT = Incident(
    replica=1,
    rank=1,
    reason="Signal",
    exit_code=137,
    signal="SIGKILL",
    message="killed",
    generation=2,
    at=at(-3),
)
ON_NODES = AUTO.having(*(pod(i).running().on(f"w{i}") for i in range(3)))
RESTARTED_IN_PLACE = ON_NODES.answering(in_place=1, incident=INCIDENT)


def test_fault_of_an_in_place_restart_is_reported_once() -> None:
    first = new_status(RESTARTED_IN_PLACE.snapshot(), None)
    again = RESTARTED_IN_PLACE.stored(first)

    assert first["failure"] == {
        "replica": 1,
        "rank": 1,
        "node": "w1",
        "reason": "Signal",
        "exitCode": 137,
        "signal": "SIGKILL",
        "message": "killed",
        "at": at(-3),
        "generation": 2,
    }
    (event,) = events(RESTARTED_IN_PLACE.snapshot(), None, first)
    assert (event.type, event.reason) == ("Warning", "RestartedInPlace")
    assert "rank 1 (replica 1) on node w1 exited with code 137: Signal: killed" in event.note
    healthy = next(c for c in first["conditions"] if c["type"] == "Healthy")
    assert (healthy["status"], healthy["message"].endswith("Signal: killed")) == ("True", True)
    assert [entry["node"] for entry in first["avoidedNodes"]] == ["w1"]
    assert new_status(again.snapshot(), None) == first
    assert events(again.snapshot(), None, first) == ()


def test_unexplained_in_place_restart_is_counted_without_a_failure() -> None:
    given = ON_NODES.answering(in_place=1)
    after = new_status(given.snapshot(), None)

    assert (after["restarts"]["counted"], "failure" in after) == (1, False)
    assert [event.note for event in events(given.snapshot(), None, after)] == ["1 in-place restart"]


def test_incident_without_an_in_place_restart_is_not_reported() -> None:
    assert "failure" not in new_status(ON_NODES.answering(incident=INCIDENT).snapshot(), None)


def test_fault_of_a_pod_comes_before_an_in_place_restart() -> None:
    given = RESTARTED_IN_PLACE.but(pod(2).crashed(3).on("w2"))
    after = new_status(given.snapshot(), restart(given.snapshot()))

    assert (after["failure"]["replica"], after["restarts"]["counted"]) == (2, 2)


DONE = AUTO.but(pod(1).succeeded(), pod(2).succeeded())


def test_finished_replicas_are_recorded_and_not_recreated() -> None:
    after = new_status(DONE.snapshot(), None)
    assert after["memory"]["done"] == "1-2"

    swept = DONE.stored(after).without(1, 2)
    assert plan(swept.snapshot()).actions == ()
    assert restart(swept.snapshot()) is None
    assert new_status(swept.snapshot(), None)["replicaStatuses"] == after["replicaStatuses"]
    assert type(plan(swept.but(pod(0).succeeded()).snapshot()).verdict).__name__ == "Succeed"


def test_agents_are_remembered_with_a_scope_that_the_user_sets() -> None:
    """After a restart of the operator replica 0 may be gone before it has answered."""
    told = new_status(THREE.answering(rejoin=True).snapshot(), None)
    assert told["memory"]["rejoins"] is True

    asked_anew = THREE.stored(told)
    assert asked_anew.snapshot().has_answered, "so its silence is noticed"
    assert new_status(asked_anew.snapshot(), None)["memory"] == told["memory"]
    lost = asked_anew.but(*(pod(i).crashed() for i in range(3))).snapshot()
    assert "rejoins" not in new_status(lost, restart(lost))["memory"], "the next attempt may have none"
    assert "rejoins" not in new_status(THREE.answering(rejoin=False).snapshot(), None).get("memory", {})


NEXT_FIRST = pod(0).with_uid("next")
FIRST_LOST = AGENTS.was("Recovering", memory={"rejoins": True}).but(NEXT_FIRST.unschedulable())


@pytest.mark.parametrize(
    ("given", "restarts"),
    [
        param(FIRST_LOST.but(pod(1).succeeded()), True, id="its pod waits for a node"),
        param(FIRST_LOST.without(0).but(pod(1).succeeded()), True, id="its pod is not created yet"),
        param(
            FIRST_LOST.was("Recovering", memory={"rejoins": True, "done": "1"}).without(1),
            True,
            id="the pod of the replica that is done is gone",
        ),
        param(FIRST_LOST, False, id="none is done"),
        param(FIRST_LOST.but(NEXT_FIRST.running(), pod(1).succeeded()), False, id="its pod has started"),
        param(
            FIRST_LOST.but(NEXT_FIRST.running()).without(2).but(pod(1).succeeded()), False, id="another's pod"
        ),
        param(
            FIRST_LOST.but(pod(1).succeeded()).recovery(scope="Replica").was("Recovering", memory={}),
            False,
            id="without agents",
        ),
    ],
)
def test_job_restarts_if_a_replica_is_done_before_the_next_replica_0_has_started(
    given: JobBuilder, *, restarts: bool
) -> None:
    """The next replica 0 would wait for it for ever."""
    verdict = restart(given.snapshot())
    assert (isinstance(verdict, Restart) and verdict.replaces is None and verdict.same_incident) is restarts
    if restarts:
        after = new_status(given.snapshot(), verdict)
        assert (after["phase"], after["attempt"], after["restarts"]["total"]) == ("Recovering", 1, 0)
        assert "done" not in after.get("memory", {})


def test_new_attempt_has_no_finished_replicas() -> None:
    failing = DONE.but(pod(0).crashed())

    assert "done" not in new_status(failing.snapshot(), restart(failing.snapshot())).get("memory", {})


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        param([], "", id="none"),
        param([3], "3", id="one"),
        param([0, 1, 2, 7], "0-2,7", id="runs"),
        param([5, 4, 9], "4-5,9", id="in order"),
    ],
)
def test_ranges(indices: list[int], text: str) -> None:
    assert ranges.text(indices, 100) == text
    assert ranges.parse(text) == set(indices)


def test_ranges_are_bounded_in_length_and_in_values() -> None:
    odd = range(1, 9999, 2)

    assert len(ranges.text(odd, 100)) <= 100
    assert ranges.parse(ranges.text(odd, 100)) < set(odd)
    assert max(ranges.parse("0-99999999")) == 9999
    assert ranges.parse("x,-,3-x,4") == {4}
    assert ranges.parse("9" * 5000) == set()  # Python refuses to parse such a number


def test_every_replica_that_has_succeeded_is_recorded_in_whatever_order_they_finish() -> None:
    """Where the node of such a pod is removed, its replica would otherwise train again."""
    third = range(2, 10_000, 3)  # they still run; hardly any other set needs a longer text
    done = ranges.text(set(range(10_000)).difference(third), 100_000)
    most = job().replicas(10_000).was("Running", memory={"done": done, "rejoins": True})

    assert new_status(most.snapshot(), None)["memory"]["done"] == done
