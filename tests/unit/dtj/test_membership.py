"""Decisions of the coordinator: rows are its specification; a state machine searches for missing cases."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dtj import contract
from dtj.agent.coordinator.membership import CAUSE_WAIT_S, LONGEST_CONNECT_S, PROOF_S, VERDICT_S, Membership
from dtj.agent.coordinator.restarts import Restarts
from dtj.agent.coordinator.watch.hang import MIN_LIMIT_S, STARTUP_TIMES
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.protocol import (
    CONNECT_S,
    Action,
    CoordinatorState,
    End,
    Form,
    Go,
    Hello,
    Job,
    Keeper,
    Limits,
    RankState,
    Refuse,
    RestartBudget,
    Say,
)
from tests.support.work import lines_executed

START = datetime(2026, 1, 1, tzinfo=UTC)
NOW = 100.0


def hello(replica: int, incarnation: str = "", **fields: object) -> Hello:
    known = {"uid": "u", "attempt": 2, "replica": replica, "incarnation": incarnation or f"pod-{replica}"}
    return Hello(**known | fields)  # type: ignore[arg-type]


def end(rank: int, code: int, *, after_s: float = 0.0) -> Ending:
    return Ending(
        rank=rank,
        code=code,
        at=START + timedelta(seconds=after_s),
        signal=code - 128 if code > 128 else None,
    )


def membership(*, replicas: int = 3, restarts: int = 5) -> Membership:
    return Membership(
        job=Job(uid="u", attempt=2, replicas=replicas, processes=1),
        restarts=Restarts(budget=RestartBudget(restarts=restarts)),
    )


def formed(*, replicas: int = 3, restarts: int = 5, holding: bool = True) -> Membership:
    """A job in its first generation; with `holding` the ranks train already."""
    found = membership(replicas=replicas, restarts=restarts)
    for replica in range(replicas):
        found.join(hello(replica), NOW)
    for rank in range(replicas):
        found.ready(rank, 1, NOW)
        if holding:
            found.hold(rank, holds=True)
    return found


def test_job_forms_when_the_last_replica_joins_and_starts_when_the_last_rank_is_ready() -> None:
    found = membership()
    assert [found.join(hello(r), NOW) for r in (2, 0)] == [[], []]
    assert found.missing == [1]
    assert found.join(hello(1), NOW) == [Form(1, frozenset(), 3)]
    assert [found.ready(rank, 1, NOW) for rank in (0, 1)] == [[], []]
    assert found.ready(2, 1, NOW) == [Go(1)]


@pytest.mark.parametrize(
    ("newcomer", "refusal"),
    [
        pytest.param(
            hello(1, uid="other"), ("this coordinator belongs to another job", False), id="another job"
        ),
        pytest.param(hello(1, attempt=1), ("attempt 2 has started", True), id="agent of an older attempt"),
        pytest.param(
            hello(1, attempt=3),
            ("this coordinator belongs to an older attempt", False),
            id="we are of an older attempt",
        ),
        pytest.param(
            hello(3),
            ("the pods disagree on the job's size: replica 3 of 3", True),
            id="replica beyond the size",
        ),
        pytest.param(
            hello(1, processes=2),
            ("replica 1 has --nproc 2, replica 0 has 1: all need the same", True),
            id="another number of ranks",
        ),
    ],
)
def test_agent_that_does_not_belong_to_the_job_is_refused(newcomer: Hello, refusal: tuple[str, bool]) -> None:
    found = formed()
    assert found.join(newcomer, NOW) == [Refuse(newcomer.incarnation, *refusal)]
    assert found.agents == {r: f"pod-{r}" for r in range(3)}
    assert found.is_formed


def test_newer_pod_replaces_the_older_one_permanently() -> None:
    found = formed()
    actions = found.join(hello(1, "newer"), NOW)
    assert actions == [
        Refuse("pod-1", "a newer pod has replaced it", for_good=True),
        Form(2, frozenset({0, 2}), 3),
    ]
    assert found.join(hello(1), NOW) == [Refuse("pod-1", "a newer pod has replaced it", for_good=True)]


@pytest.mark.parametrize("old_is_first", [True, False])
def test_pod_on_a_lost_node_does_not_take_the_place_of_its_replacement(*, old_is_first: bool) -> None:
    """A new coordinator has seen neither of them."""
    found = membership()
    old, new = hello(1, "old", restarts=4), hello(1, "new", restarts=5)
    for each in (old, new) if old_is_first else (new, old):
        found.join(each, NOW)
    assert found.agents == {1: "new"}
    assert found.join(old, NOW) == [Refuse("old", "a newer pod has replaced it", for_good=True)]
    assert found.agents == {1: "new"}


def test_lost_replica_is_waited_for_and_costs_no_budget() -> None:
    found = formed(restarts=0)
    found.leave("pod-1", NOW)
    assert found.missing == [1]
    assert found.join(hello(1, "again"), NOW) == [Form(2, frozenset({0, 2}), 3)]
    assert found.state.in_place == 0


def test_next_generation_is_newer_than_that_of_any_rank() -> None:
    """A new coordinator: the ranks of one agent were started by the last orders of the old one."""
    found = membership(replicas=2)
    found.join(hello(0), NOW)
    found_in_7 = {1: RankState(generation=7)}
    assert found.join(hello(1, ranks=found_in_7), NOW) == [Form(8, frozenset(), 2)]


def test_state_of_a_rank_says_how_it_ended() -> None:
    found = formed()
    found.ended(end(1, 0), 1, NOW)
    found.ended(end(2, contract.EXIT_PEER_LOST), 1, NOW)  # whose cause is waited for
    assert [found.state_of(rank) for rank in range(3)] == ["Running", "Done", "Failed"]


def back(replica: int, **fields: object) -> Hello:
    """The same agent as before on a new connection; the fields are those of its rank."""
    state = {"generation": 1, "holds": True, "is_ready": True} | fields
    return hello(replica, ranks={replica: RankState(**state)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "seconds", [pytest.param(0.1, id="a reset"), pytest.param(90.0, id="a long silence")]
)
@pytest.mark.parametrize(("holds", "what"), [(True, "a rank that holds the run"), (False, "a plain script")])
def test_agent_whose_connection_was_lost_returns_to_the_same_generation(
    *, seconds: float, holds: bool, what: str
) -> None:
    found = formed(holding=holds)
    found.leave("pod-1", NOW)
    assert found.missing == [1]
    assert found.join(back(1, holds=holds), NOW + seconds) == [Go(1, "pod-1")], what
    assert (found.state.generation, found.missing, found.waited_for(NOW)) == (1, [], {})
    assert found.tick(NOW + 1000) == []


def test_all_agents_return_after_replica_0_did_not_answer() -> None:
    found = formed(holding=False)
    for replica in (1, 2):
        found.leave(f"pod-{replica}", NOW)
    assert found.join(back(1, is_ready=False), NOW + 25) == [Go(1, "pod-1")]
    assert found.join(back(2, is_ready=False), NOW + 25) == [Go(1, "pod-2")]
    assert found.away == set()


def test_agent_that_missed_a_generation_does_not_return_to_the_one_before() -> None:
    found = formed()
    found.ended(end(0, 1), 1, NOW)
    found.leave("pod-1", NOW)
    assert found.join(back(1), NOW) == [Form(3, frozenset({1, 2}), 3)]


@pytest.mark.parametrize(
    ("meanwhile", "actions"),
    [
        pytest.param({"ending": end(1, 0)}, [], id="its rank is done"),
        pytest.param({"ending": end(1, 137)}, [Form(2, frozenset({0, 2}), 3)], id="its rank was killed"),
        pytest.param(
            {"ending": replace(end(1, 137), by_agent=True)},
            [Form(2, frozenset({0, 2}), 3)],
            id="its agent has killed its rank",
        ),
        pytest.param({"lost": end(1, 76)}, [], id="its rank lost its peers and waits"),
    ],
)
def test_agent_reports_what_its_ranks_did_while_its_connection_was_lost(
    meanwhile: dict[str, object], actions: list[Action]
) -> None:
    found = formed()
    found.leave("pod-1", NOW)
    answer = found.join(back(1, **meanwhile), NOW)
    assert [action for action in answer if not isinstance(action, Go)] == actions
    assert (found.state.generation, found.state.in_place) == (
        1 + len(actions),
        0 if "by_agent=True" in str(meanwhile) else len(actions),
    )


def test_job_ends_although_the_last_rank_was_done_while_its_connection_was_lost() -> None:
    found = formed(replicas=2)
    found.ended(end(0, 0), 1, NOW)
    found.leave("pod-1", NOW)
    assert found.join(back(1, ending=end(1, 0)), NOW)[-1] == End(None)
    found.leave("pod-1", NOW)
    assert found.join(back(1, ending=end(1, 0)), NOW) == [End(None)], "it missed the end, too"


def test_rank_that_waits_for_its_peers_is_not_forgotten_with_its_connection() -> None:
    found = formed()
    found.leave("pod-1", NOW)
    found.join(back(1, lost=end(1, 76)), NOW)
    assert found.tick(NOW + CAUSE_WAIT_S) == [Form(2, frozenset({0, 1, 2}), 3)]


def test_last_rank_to_be_ready_said_so_while_its_connection_was_lost() -> None:
    found = membership()
    for replica in range(3):
        found.join(hello(replica), NOW)
    for rank in (0, 2):
        assert found.ready(rank, 1, NOW) == []
    found.leave("pod-1", NOW)
    assert found.join(back(1), NOW) == [Go(1)]


@pytest.mark.parametrize(
    "code", [pytest.param(76, id="lost a peer"), pytest.param(1, id="not recognized as such")]
)
def test_ranks_that_fail_because_a_pod_was_killed_cost_no_budget(code: int) -> None:
    found = formed(restarts=0, holding=False)
    found.leave("pod-1", NOW)
    assert [found.ended(end(rank, code), 1, NOW) for rank in (0, 2)] == [[], []]
    assert found.tick(NOW + CAUSE_WAIT_S) == []
    assert not found.is_formed, "its ranks are gone, or the others would not have failed"
    assert found.join(hello(1, "again"), NOW + 9) == [Form(2, frozenset(), 3)]
    assert (found.state.in_place, found.failure) == (0, None)


def test_failure_of_a_rank_while_another_connection_is_lost_counts_once_that_agent_is_back() -> None:
    found = formed()
    found.leave("pod-1", NOW)
    assert found.ended(end(2, 1), 1, NOW) == []
    assert found.join(back(1), NOW + 1)[-1] == Form(2, frozenset({0, 1}), 3)
    assert found.state.in_place == 1


@pytest.mark.parametrize(
    ("steps", "holds", "actions"),
    [
        pytest.param(
            False, True, [Form(2, frozenset({0, 1, 2}), 3)], id="memory is kept, so nothing is lost"
        ),
        pytest.param(True, True, [], id="the ranks reach each other"),
        pytest.param(
            False, False, [], id="it would restart the ranks: the hang detector examines them first"
        ),
    ],
)
def test_ranks_form_again_if_no_step_follows_a_long_silence(
    *, steps: bool, holds: bool, actions: list[Action]
) -> None:
    """Packets were dropped: connections between the ranks may be dead, or send again only after minutes."""
    found = formed(holding=holds)
    found.leave("pod-1", NOW, silent=True)
    found.join(back(1, holds=holds), NOW)
    assert found.tick(NOW + PROOF_S - 0.1) == []
    if steps:
        found.stepped(8, NOW)
    assert found.tick(NOW + PROOF_S) == actions


def test_long_steps_get_more_time_after_a_silence() -> None:
    found = formed()
    found.stepped(1, NOW)
    found.stepped(2, NOW + 20)
    found.leave("pod-1", NOW + 25, silent=True)
    found.join(back(1), NOW + 30)
    assert found.tick(NOW + 89) == []
    assert found.tick(NOW + 90) == [Form(2, frozenset({0, 1, 2}), 3)]


def test_pod_that_was_asked_to_terminate_while_its_connection_was_lost() -> None:
    found = formed()
    found.leave("pod-1", NOW)
    found.join(replace(back(1), is_stopping=True), NOW)
    assert found.ended(end(1, 143), 1, NOW) == []


def test_lost_replica_is_reported_missing_until_it_is_back() -> None:
    found = membership()
    found.join(hello(0), NOW)
    found.join(hello(1), NOW)
    found.leave("pod-1", NOW + 5)
    assert found.waited_for(NOW + 8) == {1: 3}, "replica 2 never joined"
    found.join(hello(1, "again"), NOW + 9)
    found.join(hello(2), NOW + 9)
    assert found.waited_for(NOW + 9) == {}


def test_failure_reported_late_for_an_earlier_generation_is_not_the_cause_in_this_one() -> None:
    found = formed()
    found.leave("pod-1", NOW)
    found.join(hello(1, "again"), NOW)
    found.failing(end(0, 1), 1)
    found.ended(end(2, 1, after_s=5), 2, NOW + 5)
    assert found.failure == end(2, 1, after_s=5)


def test_no_replica_is_missing_once_all_ranks_are_done() -> None:
    found = formed(replicas=2)
    found.ended(end(0, 0), 1, NOW)
    found.ended(end(1, 0), 1, NOW)
    found.leave("pod-1", NOW)
    assert found.waited_for(NOW) == {}


def test_new_coordinator_waits_for_replicas_of_the_previous_generation() -> None:
    found = membership()
    found.join(hello(0), NOW)
    found.join(hello(1, state=CoordinatorState(generation=7)), NOW + 1)
    assert found.waited_for(NOW + 4) == {2: 3}
    found.join(hello(2, state=CoordinatorState(generation=7)), NOW + 5)
    assert found.waited_for(NOW + 5) == {}


def test_new_coordinator_takes_over_the_state_that_agents_remember() -> None:
    found = membership()
    counts = {"in_place": 3, "without_progress": 1, "best_step": 40}
    remembered = CoordinatorState(generation=7, startup_s=1500.0, **counts)
    holding = RankState(generation=7, holds=True)
    found.join(hello(1, ranks={1: holding}, state=remembered), NOW)
    found.join(hello(2, ranks={2: holding}, state=replace(remembered, generation=6)), NOW)
    assert found.join(hello(0), NOW) == [Form(8, frozenset({1, 2}), 3)]
    assert found.state == replace(remembered, generation=8, replicas=3, shift=1)


def on(machine: str) -> Keeper:
    return Keeper(port=1, token="t", machine=machine)


def test_buddies_stay_the_same_when_pods_are_replaced() -> None:
    """The new pod's copies are where its predecessor sent them, wherever the new pod runs."""
    found = membership(replicas=4)
    for replica, machine in enumerate("aabb"):
        found.join(hello(replica, keeper=on(machine)), NOW)
    assert found.state.shift == 2
    found.leave("pod-2", NOW)
    found.join(hello(2, "again", keeper=on("a")), NOW)
    assert (found.state.generation, found.state.shift) == (2, 2)
    after = membership(replicas=4)
    for replica, machine in enumerate("aaab"):
        after.join(hello(replica, f"{replica}", keeper=on(machine), state=found.state), NOW)
    assert (after.state.generation, after.state.shift) == (3, 2), "replica 0 was replaced, too"


@pytest.mark.parametrize(
    ("endings", "culprit"),
    [
        pytest.param([end(1, 1)], 1, id="an exception"),
        pytest.param([end(1, 137)], 1, id="a signal"),
        pytest.param([end(0, 76), end(1, 139, after_s=2)], 1, id="an earlier lost peer is not the cause"),
    ],
)
def test_failed_rank_is_restarted_and_counted(endings: list[Ending], culprit: int) -> None:
    found = formed()
    actions = [action for ending in endings for action in found.ended(ending, 1, NOW)]
    assert actions == [Form(2, frozenset({0, 1, 2} - {e.rank for e in endings}), 3)]
    assert found.state.in_place == 1
    assert found.failure
    assert found.failure.rank == culprit


def test_lost_peer_without_a_cause_is_decided_after_a_delay() -> None:
    found = formed()
    found.lost(end(0, 76), 1, NOW)
    assert found.tick(NOW + CAUSE_WAIT_S - 0.1) == []
    assert found.tick(NOW + CAUSE_WAIT_S) == [Form(2, frozenset({0, 1, 2}), 3)]


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(0, id="done"),
        pytest.param(contract.EXIT_PEER_LOST, id="without a cause yet"),
        pytest.param(1, id="most of them after the next generation has formed"),
    ],
)
def test_cost_of_a_rank_that_ends_does_not_grow_with_the_number_of_ranks(code: int) -> None:
    """Replica 0 of a job of 16,000 ranks did nothing else for half a minute."""

    def work(ranks: int) -> int:
        found = formed(replicas=ranks)
        return lines_executed(lambda: [found.ended(end(rank, code), 1, NOW) for rank in range(ranks)])

    assert work(200) < 2.5 * work(100)


def test_lost_peer_that_had_ended_without_a_failure_is_named() -> None:
    found = formed(restarts=0)
    found.ended(end(1, 0), 1, NOW)
    found.ended(end(0, 76), 1, NOW)
    (over,) = found.tick(NOW + CAUSE_WAIT_S) or found.tick(NOW + CAUSE_WAIT_S + VERDICT_S)
    assert isinstance(over, End)
    assert over.culprit
    assert (over.culprit.cause, found.ended_early) == ("PeerLost", [1])
    assert over.culprit.message == "rank 1 ended without a failure while other ranks still needed it"


@pytest.mark.parametrize("is_late", [False, True])
def test_rank_that_ends_without_joining_is_not_waited_for(*, is_late: bool) -> None:
    """Its script returned before dtj.init, on this rank only: the others would wait for it for ever."""
    found = membership(restarts=0)
    for replica in range(3):
        found.join(hello(replica), NOW)
    if is_late:
        found.ended(end(1, 0), 1, NOW)
    actions = found.ready(0, 1, NOW)
    if not is_late:
        actions = found.ended(end(1, 0), 1, NOW)
    (over,) = actions or found.tick(NOW + VERDICT_S)
    assert isinstance(over, End)
    assert over.culprit
    assert over.culprit.message == "rank 1 ended without a failure while other ranks still needed it"


def not_reached(found: Membership, now: float) -> list[Action]:
    """All ranks are ready, and two of them cannot reach each other."""
    generation = found.state.generation
    for rank in range(3):
        found.ready(rank, generation, NOW)
    for rank in (1, 2):
        found.unformed(end(rank, 76), generation, now)
    return found.tick(now + CAUSE_WAIT_S)


def test_ranks_that_cannot_connect_get_more_time_and_only_the_first_failure_is_free() -> None:
    found = formed()
    kept = frozenset({0, 1, 2})
    assert not_reached(found, NOW) == [Form(2, kept, 3, connect_s=2 * CONNECT_S)]
    assert found.state.in_place == 0
    assert not_reached(found, NOW) == [Form(3, kept, 3, connect_s=4 * CONNECT_S)]
    assert found.state.in_place == 1
    found.stepped(1, NOW)
    assert not_reached(found, NOW) == [Form(4, kept, 3, connect_s=2 * CONNECT_S)]
    assert found.state.in_place == 1


def test_ranks_that_can_never_connect_use_up_the_budget() -> None:
    found = formed(restarts=100)
    found.stepped(10, NOW)
    said = [not_reached(found, NOW) for _ in range(5)]
    assert [type(actions[0]) for actions in said[:4]] == [Form] * 4
    assert said[4] == []
    why = Say("no further restart: 4 failures in a row without progress")
    assert found.tick(NOW + CAUSE_WAIT_S + VERDICT_S) == [End(end(1, 76)), why]


def test_late_report_of_an_older_generation_does_not_make_a_lost_peer_free() -> None:
    found = formed()
    found.ended(end(1, 1), 1, NOW)
    for rank in range(3):
        found.ready(rank, 2, NOW)
    found.unformed(end(0, 76), 1, NOW)
    found.lost(end(0, 76), 2, NOW)
    found.tick(NOW + CAUSE_WAIT_S)
    assert (found.state.in_place, found.state.unformed) == (2, 0)


def test_large_jobs_get_more_time_to_connect() -> None:
    found = membership(replicas=1000)
    actions = [action for replica in range(1000) for action in found.join(hello(replica), NOW)]
    assert actions == [Form(1, frozenset(), 1000, connect_s=CONNECT_S + 40)]


def test_time_to_connect_is_bounded() -> None:
    found = formed(restarts=100)
    forms = [not_reached(found, NOW)[0] for _ in range(20)]
    assert max(form.connect_s for form in forms if isinstance(form, Form)) == LONGEST_CONNECT_S
    assert LONGEST_CONNECT_S + CAUSE_WAIT_S < STARTUP_TIMES * MIN_LIMIT_S, (
        "else it would be treated as a hang"
    )


def test_death_while_the_ranks_connect_is_counted() -> None:
    found = formed()
    found.unformed(end(0, 76), 1, NOW)
    assert found.ended(end(1, 137), 1, NOW) == [Form(2, frozenset({0, 2}), 3)]
    assert (found.state.in_place, found.state.unformed) == (1, 0)
    found.unformed(end(2, 76), 1, NOW)
    assert found.tick(NOW + CAUSE_WAIT_S) == []


def test_cause_that_is_reported_late_is_still_the_culprit_and_counts_once() -> None:
    found = formed()
    found.ended(end(2, 139, after_s=3), 1, NOW)
    assert found.ended(end(1, 1, after_s=1), 1, NOW) == []
    assert found.failure
    assert found.failure.rank == 1
    assert found.state.in_place == 1


def test_survivor_that_dies_before_it_is_ready_is_not_counted_again() -> None:
    found = formed(restarts=1)
    found.ended(end(2, 137), 1, NOW)
    assert found.ended(end(1, 137), 2, NOW) == [Form(3, frozenset({0}), 3)]
    assert found.state.in_place == 1


def test_all_ranks_restart_if_none_holds_the_run() -> None:
    found = formed(holding=False)
    assert found.ended(end(1, 1), 1, NOW) == [Form(2, frozenset(), 3)]


def test_all_ranks_restart_if_no_survivor_lived_to_hear_of_the_generation() -> None:
    found = formed()
    assert found.ended(end(2, 137), 1, NOW) == [Form(2, frozenset({0, 1}), 3)]
    assert found.ended(end(1, 137), 1, NOW) == []
    assert found.ended(end(0, 137), 1, NOW) == [Form(3, frozenset(), 3)]


def test_word_that_a_rank_holds_the_run_comes_too_late_if_the_rank_was_replaced() -> None:
    found = formed(holding=False)
    found.hold(0, holds=True)
    assert found.ended(end(2, 137), 1, NOW) == [Form(2, frozenset({0}), 3)]
    found.hold(1, holds=True)  # sent before its agent heard of the generation
    for rank in range(3):
        found.ready(rank, 2, NOW)
    assert found.ended(end(0, 137), 2, NOW) == [Form(3, frozenset(), 3)]


def test_all_ranks_restart_if_one_was_done_before_another_failed() -> None:
    found = formed()
    assert found.ended(end(0, 0), 1, NOW) == []
    assert found.ended(end(1, 1), 1, NOW) == [Form(2, frozenset(), 3)]


def test_all_ranks_restart_if_a_survivor_finishes_instead_of_joining() -> None:
    found = formed()
    found.ended(end(1, 1), 1, NOW)
    assert found.ended(end(0, 0), 2, NOW) == [Form(3, frozenset(), 3)]


@pytest.mark.parametrize("others", [[], [end(2, 1)]], ids=["train", "fail"])
def test_job_is_over_when_the_ranks_that_decide_are_done(others: list[Ending]) -> None:
    found = formed()
    found.job = replace(found.job, deciding=frozenset({0, 1}))
    assert found.ended(end(1, 0), 1, NOW) == []
    assert found.ended(end(0, 0), 1, NOW) == [End(None)]
    for other in others:
        assert found.ended(other, 1, NOW) == []
    assert found.tick(NOW + 600) == []


def test_nothing_is_due_once_the_job_is_over() -> None:
    """Else replica 0's agent would take a CPU from its ranks, if these do not decide and still run."""
    found = formed()
    found.job = replace(found.job, deciding=frozenset({1}))
    found.lost(end(2, 76), 1, NOW)
    assert found.deadline
    assert found.ended(end(1, 0), 1, NOW) == [End(None)]
    assert found.deadline is None


def test_failure_before_the_ranks_that_decide_are_done_restarts_all() -> None:
    found = formed(holding=False)
    found.job = replace(found.job, deciding=frozenset({0}))
    assert found.ended(end(2, 1), 1, NOW) == [Form(2, frozenset(), 3)]


def test_job_is_over_when_all_ranks_are_done() -> None:
    found = formed()
    assert [found.ended(end(rank, 0), 1, NOW) for rank in (2, 0)] == [[], []]
    assert found.ended(end(1, 0), 1, NOW) == [End(None)]


def test_bad_recipe_ends_the_job_at_once() -> None:
    found = formed()
    ending = end(1, 78)
    assert found.ended(ending, 1, NOW) == []
    assert found.tick(NOW + VERDICT_S) == [End(ending)]


def test_newest_pod_that_has_joined_is_known() -> None:
    """So the operator knows whether the coordinator has heard of its last restart."""
    assert membership().restarts_before_newest is None
    found = membership()
    for replica, restarts in ((0, 1), (1, 3), (2, 1)):
        found.join(hello(replica, restarts=restarts), NOW)
    assert found.restarts_before_newest == 3
    found.leave("pod-1", NOW)
    assert found.restarts_before_newest == 3


def test_earlier_failure_that_is_reported_later_is_the_cause() -> None:
    found = formed(restarts=0)
    assert found.ended(end(2, 139, after_s=0.2), 1, NOW) == []
    assert found.ended(end(0, 5), 1, NOW + 0.1) == []
    assert found.tick(NOW + VERDICT_S) == [End(end(0, 5))]


def test_rank_that_failed_first_is_the_cause_even_if_it_exits_last() -> None:
    """It raised an exception and still runs its exit functions."""
    found = formed(restarts=0)
    found.failing(end(1, 1), 1)
    found.ended(end(2, 137, after_s=0.2), 1, NOW)
    assert found.tick(NOW + VERDICT_S) == [End(end(1, 1))]


def test_rank_that_is_ready_after_the_end_gets_no_order() -> None:
    found = formed(restarts=0, replicas=2)
    found.ready(1, 1, NOW)
    found.ended(end(0, 1), 1, NOW)
    assert found.tick(NOW + VERDICT_S) == [End(end(0, 1))]
    assert found.ready(0, 1, NOW) == []


def test_failure_of_all_ranks_is_decided_without_delay() -> None:
    found = formed(restarts=0)
    for rank in (1, 2):
        found.ended(end(rank, 1, after_s=rank), 1, NOW)
    assert found.ended(end(0, 1), 1, NOW) == [End(end(0, 1))]


def test_pod_that_was_asked_to_terminate_is_not_healed() -> None:
    found = formed()
    found.stop("pod-1", NOW)
    assert found.ended(end(1, 143), 1, NOW) == []
    found.leave("pod-1", NOW)
    assert found.state.in_place == 0


def test_ranks_that_stop_with_a_pod_that_was_asked_to_terminate_wait_for_its_replacement() -> None:
    """All ranks of a sharded run stop after the same step if nothing can be saved: no rank has failed."""
    found = formed(restarts=0)
    found.stop("pod-1", NOW)
    for rank in (1, 0, 2):
        assert found.ended(replace(end(rank, 143), signal=None), 1, NOW) == []
    assert found.deadline is None
    found.leave("pod-1", NOW)
    assert found.join(hello(1, "again"), NOW) == [Form(2, frozenset(), 3)]
    assert (found.state.in_place, found.failure) == (0, None)


def test_replacement_of_a_pod_that_was_asked_to_terminate_is_healed() -> None:
    found = formed()
    found.stop("pod-1", NOW)
    found.leave("pod-1", NOW)
    assert found.join(hello(1, "again"), NOW) == [Form(2, frozenset({0, 2}), 3)]
    assert found.ended(end(1, 137), 2, NOW) == [Form(3, frozenset({0, 2}), 3)]


def drained(*, processes: int = 2) -> Membership:
    """A job of three replicas; the pod of replica 1 was asked to terminate."""
    found = Membership(
        job=Job(uid="u", attempt=2, replicas=3, processes=processes),
        restarts=Restarts(budget=RestartBudget(restarts=5)),
    )
    for replica in range(3):
        found.join(hello(replica, processes=processes), NOW)
    for rank in found.job.ranks:
        found.ready(rank, 1, NOW)
    found.stop("pod-1", NOW)
    return found


@pytest.mark.parametrize(
    "code", [pytest.param(76, id="lost a peer"), pytest.param(1, id="not recognized as such")]
)
@pytest.mark.parametrize("is_late", [False, True])
def test_what_follows_from_the_first_end_in_a_pod_that_was_asked_to_terminate_costs_no_budget(
    *, code: int, is_late: bool
) -> None:
    """The pod lives on, with a rank that takes longer; the end of the first one may be reported late."""
    found = drained()
    first = [(2, 143, 0.0), (0, code, 0.1), (5, code, 0.1)]
    for rank, ended, after_s in first[::-1] if is_late else first:
        assert found.ended(end(rank, ended, after_s=after_s), 1, NOW) == []
    found.lost(end(1, 76, after_s=0.2), 1, NOW)
    assert found.tick(NOW + CAUSE_WAIT_S) == []
    assert found.ended(end(3, 143, after_s=12.0), 1, NOW + 12) == []
    assert (found.state.in_place, found.failure) == (0, None)
    found.leave("pod-1", NOW + 12)
    assert found.join(hello(1, "again", processes=2), NOW + 20) == [Form(2, frozenset(), 3)]


@pytest.mark.parametrize("is_formed", [True, False])
def test_ranks_that_lose_a_pod_which_ends_slowly_cost_no_budget(*, is_formed: bool) -> None:
    """Its agent killed a rank because of the GPU of another one, which takes long to exit."""
    found = drained()
    (found.lost if is_formed else found.unformed)(end(0, 76), 1, NOW)
    assert found.tick(NOW + CAUSE_WAIT_S) == []
    assert (found.state.in_place, found.state.unformed, found.failure) == (0, 0, None)
    assert found.deadline is None
    found.leave("pod-1", NOW + 20)
    assert found.join(hello(1, "again", processes=2), NOW + 40) == [Form(2, frozenset(), 3)]


def test_ranks_that_lose_a_peer_beside_a_pod_that_is_done_and_asked_to_terminate_are_healed() -> None:
    found = drained(processes=1)
    found.ended(end(1, 0), 1, NOW)
    found.lost(end(0, 76), 1, NOW)
    assert [type(action) for action in found.tick(NOW + CAUSE_WAIT_S)] == [Form]
    assert found.state.in_place == 1


def test_failure_before_the_first_end_in_a_pod_that_was_asked_to_terminate_counts() -> None:
    found = drained()
    found.ended(end(0, 139, after_s=0.0), 1, NOW)
    found.ended(end(2, 76, after_s=0.1), 1, NOW)
    assert found.tick(NOW + CAUSE_WAIT_S) == [Form(2, frozenset(), 3)]
    assert (found.state.in_place, found.failure) == (1, end(0, 139))


def test_pod_whose_ranks_were_done_when_it_was_asked_to_terminate_is_not_waited_for() -> None:
    """It exits with code 0, so that the operator does not replace it."""
    found = drained(processes=1)
    assert found.ended(end(1, 0), 1, NOW) == []
    found.leave("pod-1", NOW)
    assert (found.missing, found.waited_for(NOW + 60)) == ([], {})
    assert found.ended(end(0, 0), 1, NOW + 60) == []
    assert found.ended(end(2, 0), 1, NOW + 60) == [End(None)]


def test_elastic_job_does_not_shrink_around_a_pod_that_is_done() -> None:
    """It would run its end again."""
    found = drained(processes=1)
    found.job = replace(found.job, limits=Limits(1, 3), saves=True)
    found.stop("pod-2", NOW)
    found.ended(end(2, 0), 1, NOW)
    found.leave("pod-2", NOW)
    assert found.tick(NOW + 600) == []
    assert found.deadline is None


def test_failure_after_a_pod_has_left_whose_ranks_were_done_ends_all_pods() -> None:
    """The ranks cannot start again without it, so the operator starts all pods again."""
    found = drained(processes=1)
    found.ended(end(1, 0), 1, NOW)
    found.leave("pod-1", NOW)
    found.ended(end(0, 1), 1, NOW + 60)
    assert found.tick(NOW + 60 + VERDICT_S) == [End(end(0, 1))]
    assert found.state.in_place == 0, "the operator counts it"


def test_ranks_that_have_to_form_again_after_a_pod_has_left_whose_ranks_were_done() -> None:
    found = drained(processes=1)
    found.ended(end(1, 0), 1, NOW)
    found.leave("pod-1", NOW)
    (action,) = found.renew()
    assert isinstance(action, End)
    assert action.culprit is not None
    assert (action.culprit.rank, action.culprit.code) == (0, 76)
    assert "replica 1 was done and left" in action.culprit.message


def test_ranks_form_again_if_the_pod_that_was_done_was_replaced() -> None:
    found = drained(processes=1)
    found.ended(end(1, 0), 1, NOW)
    found.leave("pod-1", NOW)
    assert found.join(hello(1, "again"), NOW) == [], "the others may finish without it"
    assert found.ended(end(0, 1), 1, NOW + 60) == [Form(2, frozenset(), 3)]


class Machine(RuleBasedStateMachine):
    """Pods join and leave, ranks do anything, messages of old generations arrive late."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas = 3
        self.found = membership(replicas=self.replicas, restarts=4)
        self.now = 0.0
        self.pods = 0
        self.connected: dict[int, str] = {}
        self.generation = 0
        self.kept: frozenset[int] = frozenset()
        self.gone: set[int] = set()
        self.is_over = False

    def act(self, actions: list[Action]) -> None:
        was_over = self.is_over
        for action in actions:
            # With the end itself comes a line for the log: why no restart is left.
            allowed = Refuse | End if was_over else Refuse | End | Say
            assert not self.is_over or isinstance(action, allowed), "the end is final"
            if isinstance(action, Form):
                assert action.generation == self.generation + 1
                assert not self.found.missing
                assert not action.kept & self.gone, "dead ranks are not kept"
                self.generation, self.kept, self.gone = action.generation, action.kept, set()
            if isinstance(action, Go):
                assert action.generation == self.generation
            self.is_over = self.is_over or isinstance(action, End)

    @rule(replica=st.integers(0, 2), attempt=st.sampled_from([1, 2, 2, 2, 3]))
    def join(self, replica: int, attempt: int) -> None:
        self.pods += 1
        self.act(self.found.join(hello(replica, f"pod {self.pods}", attempt=attempt), self.now))

    @rule(replica=st.integers(0, 2))
    def stop(self, replica: int) -> None:
        self.found.stop(self.found.agents.get(replica, "unknown"), self.now)

    @rule(replica=st.integers(0, 2), silent=st.booleans())
    def leave(self, replica: int, *, silent: bool) -> None:
        incarnation = self.found.agents.get(replica, "unknown")
        self.connected[replica] = incarnation
        self.found.leave(incarnation, self.now, silent=silent)

    @precondition(lambda self: self.found.away)
    @rule(lag=st.sampled_from([0, 0, 0, 1]), code=st.sampled_from([None, None, 0, 1, 76]))
    def come_back(self, lag: int, code: int | None) -> None:
        replica = min(self.found.away)
        if replica in self.gone:
            return
        ending = None if code is None else end(replica, code)
        state = RankState(
            generation=self.generation - lag, holds=ending is None, is_ready=True, ending=ending
        )
        if ending and lag == 0:
            self.gone.add(replica)
        self.act(self.found.join(hello(replica, self.connected[replica], ranks={replica: state}), self.now))

    @precondition(lambda self: self.found.is_formed)
    @rule(rank=st.integers(0, 2), lag=st.sampled_from([0, 0, 0, 1]))
    def ready(self, rank: int, lag: int) -> None:
        self.act(self.found.ready(rank, self.generation - lag, NOW))
        if rank not in self.gone:
            self.found.hold(rank, holds=True)

    @precondition(lambda self: self.generation > 0)
    @rule(
        rank=st.integers(0, 2), code=st.sampled_from([0, 1, 76, 137, 75]), lag=st.sampled_from([0, 0, 0, 1])
    )
    def ended(self, rank: int, code: int, lag: int) -> None:
        if lag == 0 and rank not in self.gone:
            self.gone.add(rank)
            self.act(self.found.ended(end(rank, code), self.generation, self.now))
        elif lag:
            self.act(self.found.ended(end(rank, code), self.generation - lag, self.now))

    @rule(rank=st.integers(0, 2))
    def lost(self, rank: int) -> None:
        self.found.lost(end(rank, 76), self.generation, self.now)

    @rule(rank=st.integers(0, 2), lag=st.sampled_from([0, 0, 1]))
    def unformed(self, rank: int, lag: int) -> None:
        self.found.unformed(end(rank, 76), self.generation - lag, self.now)

    @rule(step=st.integers(0, 50))
    def stepped(self, step: int) -> None:
        self.found.stepped(step, NOW)

    @rule(seconds=st.sampled_from([0.1, 3.0, 10.0]))
    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.found.tick(self.now))

    @invariant()
    def within_the_budget(self) -> None:
        assert self.found.state.in_place <= 4

    @invariant()
    def complete_jobs_are_formed_or_over(self) -> None:
        known = self.found
        assert known.missing or known.stopping or known.is_formed or known.is_over

    @invariant()
    def nothing_is_due_that_was_done(self) -> None:
        """Else the coordinator would never sleep."""
        deadline = self.found.deadline
        assert deadline is None or deadline >= self.now

    @invariant()
    def the_same_generation(self) -> None:
        assert self.found.state.generation == self.generation


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_machine = Machine.TestCase
