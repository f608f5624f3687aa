"""What the coordinator decides: rows are its specification, a machine looks for what no row thought of."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dtj.agent.ledger import Ledger
from dtj.agent.membership import GRACE_S, VERDICT_S, Membership
from dtj.agent.protocol import Action, CoordinatorState, End, Form, Go, Hello, Job, Refuse, RestartBudget
from dtj.agent.report import Ending
from dtj.agent.sizing import PATIENCE_S, SETTLE_S, Limits, size

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
        job=Job(uid="u", attempt=2, replicas=replicas, processes=1), budget=RestartBudget(restarts=restarts)
    )


def formed(*, replicas: int = 3, restarts: int = 5, holding: bool = True) -> Membership:
    """A job in its first generation; `holding` says that the ranks train already."""
    found = membership(replicas=replicas, restarts=restarts)
    for replica in range(replicas):
        found.join(hello(replica), NOW)
    for rank in range(replicas):
        found.ready(rank, 1)
        if holding:
            found.hold(rank, holds=True)
    return found


def test_job_forms_when_the_last_replica_joins_and_goes_when_the_last_rank_is_ready() -> None:
    found = membership()
    assert [found.join(hello(r), NOW) for r in (2, 0)] == [[], []]
    assert found.missing == [1]
    assert found.join(hello(1), NOW) == [Form(1, frozenset(), 3)]
    assert [found.ready(rank, 1) for rank in (0, 1)] == [[], []]
    assert found.ready(2, 1) == [Go(1)]


@pytest.mark.parametrize(
    ("newcomer", "refusal"),
    [
        pytest.param(hello(1, uid="other"), ("this is another job's coordinator", False), id="another job"),
        pytest.param(hello(1, attempt=1), ("attempt 2 has begun", True), id="a stale attempt"),
        pytest.param(
            hello(1, attempt=3), ("this coordinator is of an older attempt", False), id="we are stale"
        ),
        pytest.param(hello(3), ("replica 3 of 3: sizes differ between the pods", True), id="one too many"),
    ],
)
def test_agent_that_does_not_belong_here_is_refused(newcomer: Hello, refusal: tuple[str, bool]) -> None:
    found = formed()
    assert found.join(newcomer, NOW) == [Refuse(newcomer.incarnation, *refusal)]
    assert found.agents == {r: f"pod-{r}" for r in range(3)}
    assert found.is_formed


def test_newer_pod_takes_the_place_of_the_older_for_good() -> None:
    found = formed()
    actions = found.join(hello(1, "newer"), NOW)
    assert actions == [
        Refuse("pod-1", "a newer pod has taken its place", for_good=True),
        Form(2, frozenset({0, 2}), 3),
    ]
    assert found.join(hello(1), NOW) == [Refuse("pod-1", "a newer pod has taken its place", for_good=True)]


def test_lost_replica_is_waited_for_and_costs_no_budget() -> None:
    found = formed(restarts=0)
    assert found.leave("pod-1", NOW) == []
    assert found.missing == [1]
    assert found.join(hello(1, "again"), NOW) == [Form(2, frozenset({0, 2}), 3)]
    assert found.state.in_place == 0


def test_next_coordinator_goes_on_with_what_the_agents_remember() -> None:
    found = membership()
    remembered = CoordinatorState(generation=7, in_place=3, without_progress=1, best_step=40)
    found.join(hello(1, healable=frozenset({1}), state=remembered), NOW)
    found.join(hello(2, healable=frozenset({2}), state=replace(remembered, generation=6)), NOW)
    assert found.join(hello(0), NOW) == [Form(8, frozenset({1, 2}), 3)]
    assert found.state == replace(remembered, generation=8, replicas=3)


@pytest.mark.parametrize(
    ("endings", "culprit"),
    [
        pytest.param([end(1, 1)], 1, id="an exception"),
        pytest.param([end(1, 137)], 1, id="a signal"),
        pytest.param([end(0, 76), end(1, 139, after_s=2)], 1, id="an echo that came first is not the cause"),
    ],
)
def test_failed_rank_is_started_anew_and_counted(endings: list[Ending], culprit: int) -> None:
    found = formed()
    actions = [action for ending in endings for action in found.ended(ending, 1, NOW)]
    assert actions == [Form(2, frozenset({0, 1, 2} - {e.rank for e in endings}), 3)]
    assert found.state.in_place == 1
    assert found.failure
    assert found.failure.rank == culprit


def test_lost_peer_without_a_cause_is_decided_after_a_grace() -> None:
    found = formed()
    assert found.lost(end(0, 76), 1, NOW) == []
    assert found.tick(NOW + GRACE_S - 0.1) == []
    assert found.tick(NOW + GRACE_S) == [Form(2, frozenset({0, 1, 2}), 3)]


def test_cause_that_is_told_late_still_gets_the_blame_and_counts_once() -> None:
    found = formed()
    found.ended(end(2, 139, after_s=3), 1, NOW)
    assert found.ended(end(1, 1, after_s=1), 1, NOW) == []
    assert found.failure
    assert found.failure.rank == 1
    assert found.state.in_place == 1


def test_survivor_that_dies_before_it_is_back_is_not_counted_again() -> None:
    found = formed(restarts=1)
    found.ended(end(2, 137), 1, NOW)
    assert found.ended(end(1, 137), 2, NOW) == [Form(3, frozenset({0}), 3)]
    assert found.state.in_place == 1


def test_nobody_who_holds_the_run_means_that_all_start_anew() -> None:
    found = formed(holding=False)
    assert found.ended(end(1, 1), 1, NOW) == [Form(2, frozenset(), 3)]


def test_rank_that_was_done_before_another_failed_makes_all_start_anew() -> None:
    found = formed()
    assert found.ended(end(0, 0), 1, NOW) == []
    assert found.ended(end(1, 1), 1, NOW) == [Form(2, frozenset(), 3)]


def test_survivor_that_finishes_instead_of_joining_makes_all_start_anew() -> None:
    found = formed()
    found.ended(end(1, 1), 1, NOW)
    assert found.ended(end(0, 0), 2, NOW) == [Form(3, frozenset(), 3)]


def test_all_done_is_the_end() -> None:
    found = formed()
    assert [found.ended(end(rank, 0), 1, NOW) for rank in (2, 0)] == [[], []]
    assert found.ended(end(1, 0), 1, NOW) == [End(None)]


def test_bad_recipe_is_the_end_at_once() -> None:
    found = formed()
    ending = end(1, 78)
    assert found.ended(ending, 1, NOW) == []
    assert found.tick(NOW + VERDICT_S) == [End(ending)]


def test_spent_budget_is_the_end() -> None:
    found = formed(restarts=1)
    found.ended(end(1, 1), 1, NOW)
    for rank in range(3):
        found.ready(rank, 2)
    last = end(2, 1)
    assert found.ended(last, 2, NOW) == []
    assert found.tick(NOW + VERDICT_S) == [End(last)]


@pytest.mark.parametrize("theirs", [0, 2])
def test_heals_are_counted_on_whoever_remembers_them(theirs: int) -> None:
    """The operator, where the pods that saw them are gone; or a survivor, which may know of one more."""
    budget = RestartBudget(restarts=3, spent=1)
    job = Job(uid="u", attempt=2, replicas=2, processes=1)
    found = Membership(job=job, budget=budget, state=CoordinatorState(in_place=budget.spent))
    found.join(hello(0), NOW)
    found.join(hello(1, state=CoordinatorState(generation=4, in_place=theirs)), NOW)
    assert found.state.in_place == max(1, theirs)
    for left in reversed(range(3 - found.state.in_place)):
        found.ended(end(1, 1), found.state.generation, NOW)
        for rank in range(2):
            found.ready(rank, found.state.generation)
        assert (found.state.in_place, found.is_over) == (3 - left, False)
    found.ended(end(1, 1), found.state.generation, NOW)
    assert found.tick(NOW + VERDICT_S) == [End(end(1, 1))]


def test_earlier_failure_that_is_told_later_is_the_cause() -> None:
    found = formed(restarts=0)
    assert found.ended(end(2, 139, after_s=0.2), 1, NOW) == []
    assert found.ended(end(0, 5), 1, NOW + 0.1) == []
    assert found.tick(NOW + VERDICT_S) == [End(end(0, 5))]


def test_rank_that_failed_first_is_the_cause_though_it_dies_last() -> None:
    """It raised, and still runs its exit functions."""
    found = formed(restarts=0)
    assert found.failing(end(1, 1), 1) == []
    found.ended(end(2, 137, after_s=0.2), 1, NOW)
    assert found.tick(NOW + VERDICT_S) == [End(end(1, 1))]


def test_failure_of_all_ranks_needs_no_time_to_hear_of_more() -> None:
    found = formed(restarts=0)
    for rank in (1, 2):
        found.ended(end(rank, 1, after_s=rank), 1, NOW)
    assert found.ended(end(0, 1), 1, NOW) == [End(end(0, 1))]


def test_restarts_without_a_new_step_are_bounded_and_a_step_clears_the_row() -> None:
    found = formed(restarts=100)
    found.stepped(10)
    forms = 0
    for generation in range(1, 20):
        for rank in range(3):
            found.ready(rank, generation)
        if generation == 3:
            found.stepped(11)
        actions = found.ended(end(1, 1), generation, NOW) or found.tick(NOW + VERDICT_S)
        if not isinstance(actions[0], Form):
            break
        forms += 1
    assert forms == 2 + 3  # two before step 11, then three more in a row
    assert isinstance(actions[0], End)


def test_pod_that_was_asked_to_end_is_not_healed() -> None:
    found = formed()
    found.stop("pod-1", NOW)
    assert found.ended(end(1, 143), 1, NOW) == []
    assert found.leave("pod-1", NOW) == []
    assert found.state.in_place == 0


class Machine(RuleBasedStateMachine):
    """Pods come and go, ranks do anything, messages of old generations arrive late."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas = 3
        self.found = membership(replicas=self.replicas, restarts=4)
        self.now = 0.0
        self.pods = 0
        self.generation = 0
        self.kept: frozenset[int] = frozenset()
        self.gone: set[int] = set()
        self.is_over = False

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            assert not self.is_over or isinstance(action, Refuse), "only strangers hear more after the end"
            if isinstance(action, Form):
                assert action.generation == self.generation + 1
                assert not self.found.missing
                assert not action.kept & self.gone, "the dead are not kept"
                self.generation, self.kept, self.gone = action.generation, action.kept, set()
            if isinstance(action, Go):
                assert action.generation == self.generation
            self.is_over = self.is_over or isinstance(action, End)

    @rule(replica=st.integers(0, 2), attempt=st.sampled_from([1, 2, 2, 2, 3]))
    def join(self, replica: int, attempt: int) -> None:
        self.pods += 1
        self.act(self.found.join(hello(replica, f"pod {self.pods}", attempt=attempt), self.now))

    @rule(replica=st.integers(0, 2))
    def leave(self, replica: int) -> None:
        self.act(self.found.leave(self.found.agents.get(replica, "nobody"), self.now))

    @precondition(lambda self: self.found.is_formed)
    @rule(rank=st.integers(0, 2), lag=st.sampled_from([0, 0, 0, 1]))
    def ready(self, rank: int, lag: int) -> None:
        self.act(self.found.ready(rank, self.generation - lag))
        if rank not in self.gone:
            self.act(self.found.hold(rank, holds=True))

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
        self.act(self.found.lost(end(rank, 76), self.generation, self.now))

    @rule(step=st.integers(0, 50))
    def stepped(self, step: int) -> None:
        self.act(self.found.stepped(step))

    @rule(seconds=st.sampled_from([0.1, 3.0, 10.0]))
    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.found.tick(self.now))

    @invariant()
    def within_the_budget(self) -> None:
        assert self.found.state.in_place <= 4

    @invariant()
    def complete_jobs_are_formed_or_over(self) -> None:
        assert self.found.missing or self.found.is_formed or self.found.is_over

    @invariant()
    def the_same_generation(self) -> None:
        assert self.found.state.generation == self.generation


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_machine = Machine.TestCase


def elastic(*, replicas: int, here: int, least: int = 1, most: int = 4, saves: bool = True) -> Membership:
    """An elastic job for so many replicas, of which the first `here` have joined."""
    job = Job(uid="u", attempt=2, replicas=replicas, limits=Limits(least, most), saves=saves)
    found = Membership(job=job, budget=RestartBudget())
    for replica in range(here):
        found.join(hello(replica), NOW)
    return found


@pytest.mark.parametrize(
    ("now", "here", "left", "is_patient", "expected"),
    [
        pytest.param(2, {0, 1}, set(), True, 2, id="all there"),
        pytest.param(2, {0, 1, 2, 3}, set(), True, 4, id="two more"),
        pytest.param(2, {0, 1, 3}, set(), True, 2, id="one behind a gap waits"),
        pytest.param(3, {0, 1}, {2}, True, 2, id="the last one was asked to leave"),
        pytest.param(4, {0}, {1, 2, 3}, True, 1, id="all but the first"),
        pytest.param(4, {0, 2, 3}, {1}, True, 4, id="one in the middle will be replaced"),
        pytest.param(4, {0, 2, 3}, {1}, False, 1, id="or will not"),
        pytest.param(3, {0, 1}, set(), True, 3, id="a lost one is waited for"),
        pytest.param(3, {0, 1}, set(), False, 2, id="but not for ever"),
        pytest.param(3, set(), {0, 1, 2}, False, 3, id="never fewer than the least"),
        pytest.param(3, {1, 2}, {0}, True, 3, id="the coordinator's own pod"),
    ],
)
def test_size(now: int, here: set[int], left: set[int], is_patient: bool, expected: int) -> None:
    assert size(now, here=here, left=left, limits=Limits(1, 4), is_patient=is_patient) == expected


def test_elastic_job_grows_when_the_next_replicas_join() -> None:
    found = elastic(replicas=2, here=2)
    assert found.join(hello(3), NOW) == []
    assert found.join(hello(2), NOW + 1) == []
    assert found.tick(NOW + 1 + SETTLE_S) == [Form(2, frozenset(), 4, gracefully=True)]
    assert found.state.replicas == 4


def test_elastic_job_shrinks_when_the_last_replicas_are_asked_to_leave() -> None:
    found = elastic(replicas=3, here=3)
    for replica in (1, 2):
        found.stop(f"pod-{replica}", NOW)
    found.leave("pod-2", NOW)
    assert found.ended(end(0, 75), 1, NOW) == []
    assert found.tick(NOW + SETTLE_S) == [Form(2, frozenset(), 1)]


def test_elastic_job_waits_for_an_evicted_pod_in_its_middle() -> None:
    found = elastic(replicas=3, here=3)
    found.stop("pod-1", NOW)
    assert [found.ended(end(rank, 75), 1, NOW) for rank in (0, 1, 2)] == [[], [], []]
    found.leave("pod-1", NOW)
    assert found.tick(NOW + SETTLE_S) == []
    assert found.join(hello(1, "again"), NOW + 5) == [Form(2, frozenset(), 3)]


def test_elastic_job_goes_on_smaller_where_a_lost_replica_does_not_come_back() -> None:
    found = elastic(replicas=3, here=3)
    found.leave("pod-2", NOW)
    assert found.tick(NOW + PATIENCE_S - 1) == []
    assert found.deadline == NOW + PATIENCE_S
    assert found.tick(NOW + PATIENCE_S) == [Form(2, frozenset(), 2)]
    assert found.join(hello(2, "again"), NOW + 100) == []
    assert found.tick(NOW + 100 + SETTLE_S) == [Form(3, frozenset(), 3, gracefully=True)]


def test_elastic_job_begins_smaller_where_not_all_come() -> None:
    found = elastic(replicas=4, here=2, least=2)
    assert found.tick(NOW + PATIENCE_S) == [Form(1, frozenset(), 2)]


def test_elastic_job_without_a_checkpoint_folder_does_not_grow() -> None:
    found = elastic(replicas=2, here=3, saves=False)
    assert found.tick(NOW + SETTLE_S) == []
    assert found.state.generation == 1


def test_coordinator_that_comes_anew_learns_the_size_from_the_others() -> None:
    found = elastic(replicas=4, here=0)
    for replica in (1, 0):
        actions = found.join(hello(replica, state=CoordinatorState(generation=5, replicas=2)), NOW)
    assert actions == [Form(6, frozenset(), 2)]


def test_replica_beyond_the_largest_size_is_refused() -> None:
    why = "replica 4 of 4: sizes differ between the pods"
    assert elastic(replicas=2, here=0).join(hello(4), NOW) == [Refuse("pod-4", why, for_good=True)]


class ElasticMachine(RuleBasedStateMachine):
    """Pods of an elastic job come, go and are lost, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.found = elastic(replicas=2, here=0)
        self.now = NOW
        self.pods = 0
        self.formed: Form | None = None

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Form):
                assert action.generation == (self.formed.generation if self.formed else 0) + 1
                assert 1 <= action.replicas <= 4
                assert self.found.agents.keys() >= set(range(action.replicas))
                self.formed = action

    @rule(replica=st.integers(0, 3))
    def join(self, replica: int) -> None:
        self.pods += 1
        self.act(self.found.join(hello(replica, f"pod {self.pods}"), self.now))

    @rule(replica=st.integers(0, 3))
    def leave(self, replica: int) -> None:
        self.act(self.found.leave(self.found.agents.get(replica, "nobody"), self.now))

    @rule(replica=st.integers(0, 3))
    def stop(self, replica: int) -> None:
        self.act(self.found.stop(self.found.agents.get(replica, "nobody"), self.now))

    @precondition(lambda self: self.formed is not None)
    @rule(rank=st.integers(0, 3), code=st.sampled_from([75, 75, 137]))
    def ended(self, rank: int, code: int) -> None:
        if self.formed and rank < self.formed.replicas:
            self.act(self.found.ended(end(rank, code), self.formed.generation, self.now))

    @rule(seconds=st.sampled_from([0.1, 2.0, PATIENCE_S]))
    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.found.tick(self.now))

    @invariant()
    def waits_only_for_who_may_come(self) -> None:
        """With the first replica there and time gone by, somebody trains, or the job is over."""
        if 0 in self.found.agents and not self.found.agents.keys() & self.found.stopping:
            for _ in range(2):
                self.act(self.found.tick(self.now + PATIENCE_S + GRACE_S))
            assert self.found.is_formed or self.found.is_over
            self.now += PATIENCE_S + GRACE_S


ElasticMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
test_elastic_machine = ElasticMachine.TestCase


def test_every_second_is_in_one_kind() -> None:
    ledger = Ledger(since=0.0)
    ledger.stepped(1, 4.0)  # start-up
    ledger.stepped(2, 5.0)  # productive
    ledger.fault(5.5)  # half a step for nothing
    ledger.fault(6.0)  # the same incident goes on
    ledger.formed(7.0)
    ledger.stepped(1, 8.0)  # back, but behind
    ledger.stepped(2, 9.0)  # done again
    ledger.stepped(3, 10.5)  # productive again
    assert ledger.at(11.0) == {"startup": 4.0, "productive": 3.0, "lost": 1.5, "recovering": 2.5}
    assert sum(ledger.at(11.0).values()) == 11.0


def test_step_that_is_told_of_after_a_later_fault_was_good() -> None:
    ledger = Ledger(since=0.0)
    ledger.stepped(1, 4.0)
    ledger.fault(6.0)
    ledger.stepped(2, 5.0)
    ledger.formed(6.5)
    ledger.stepped(3, 6.25)  # by those that did not notice yet
    ledger.stepped(4, 8.0)
    assert ledger.at(8.0) == {"startup": 4.0, "productive": 2.25, "lost": 0.0, "recovering": 1.75}


def test_fault_in_the_start_up_belongs_to_it() -> None:
    ledger = Ledger(since=0.0)
    ledger.fault(2.0)
    ledger.formed(3.0)
    ledger.stepped(1, 5.0)
    assert ledger.at(6.0) == {"startup": 5.0, "productive": 1.0, "lost": 0.0, "recovering": 0.0}
