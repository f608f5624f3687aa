"""The size of an elastic job's next generation, and when it changes; test_elastic.py uses real pods."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dtj.agent.coordinator.membership import CAUSE_WAIT_S, Membership
from dtj.agent.coordinator.restarts import Restarts
from dtj.agent.coordinator.sizing import RESIZE_DELAY_S, SHRINK_DELAY_S, size
from dtj.agent.wire.protocol import (
    Action,
    CoordinatorState,
    End,
    Form,
    Go,
    Job,
    Limits,
    RankState,
    Refuse,
    RestartBudget,
)
from tests.unit.dtj.test_membership import NOW, end, hello


def elastic(
    *,
    replicas: int,
    here: int,
    least: int = 1,
    most: int = 4,
    saves: bool = True,
    excluded: frozenset[int] = frozenset(),
) -> Membership:
    """An elastic job with this many replicas, of which the first `here` have joined."""
    job = Job(uid="u", attempt=2, replicas=replicas, limits=Limits(least, most, excluded), saves=saves)
    found = Membership(job=job, restarts=Restarts(budget=RestartBudget()))
    for replica in range(here):
        found.join(hello(replica), NOW)
    for rank in range(here if found.is_formed else 0):
        found.ready(rank, found.state.generation, NOW)
        found.hold(rank, holds=True)
    return found


@pytest.mark.parametrize(
    ("current", "here", "left", "waits_for_lost", "expected"),
    [
        pytest.param(2, {0, 1}, set(), True, 2, id="all joined"),
        pytest.param(2, {0, 1, 2, 3}, set(), True, 4, id="two more"),
        pytest.param(2, {0, 1, 3}, set(), True, 2, id="a replica after a gap waits"),
        pytest.param(3, {0, 1}, {2}, True, 2, id="the last replica was asked to terminate"),
        pytest.param(4, {0}, {1, 2, 3}, True, 1, id="all but the first were asked to terminate"),
        pytest.param(4, {0, 2, 3}, {1}, True, 4, id="one in the middle may be replaced"),
        pytest.param(4, {0, 2, 3}, {1}, False, 1, id="one in the middle was not replaced"),
        pytest.param(3, {0, 1}, set(), True, 3, id="a lost replica is waited for"),
        pytest.param(3, {0, 1}, set(), False, 2, id="a lost replica did not come back"),
        pytest.param(3, set(), {0, 1, 2}, False, 3, id="never below the minimum"),
        pytest.param(3, {1, 2}, {0}, True, 3, id="replica 0 was asked to terminate"),
    ],
)
def test_size(current: int, here: set[int], left: set[int], waits_for_lost: bool, expected: int) -> None:
    assert size(current, here=here, left=left, limits=Limits(1, 4), waits_for_lost=waits_for_lost) == expected


@pytest.mark.parametrize(
    ("current", "here", "left", "waits_for_lost", "expected"),
    [
        pytest.param(2, {0, 1, 2}, set(), True, 2, id="the third waits for the fourth"),
        pytest.param(2, {0, 1, 2, 3}, set(), True, 4, id="two more"),
        pytest.param(4, {0, 1, 2}, {3}, True, 2, id="the last replica was asked to terminate"),
        pytest.param(4, {0, 1, 2}, set(), True, 4, id="a lost replica is waited for"),
        pytest.param(4, {0, 1, 2}, set(), False, 2, id="a lost replica did not come back"),
        pytest.param(4, {0}, {1, 2, 3}, True, 4, id="none fits"),
    ],
)
def test_size_that_the_mesh_does_not_fit_is_skipped(
    current: int, here: set[int], left: set[int], waits_for_lost: bool, expected: int
) -> None:
    limits = Limits(1, 4, frozenset({1, 3}))
    assert size(current, here=here, left=left, limits=limits, waits_for_lost=waits_for_lost) == expected


def test_replica_waits_until_the_mesh_fits() -> None:
    found = elastic(replicas=2, here=3, excluded=frozenset({1, 3}))
    assert found.tick(NOW + RESIZE_DELAY_S) == []
    unfit = found.unfit
    found.join(hello(3), NOW + 5)
    assert (unfit, found.unfit) == (3, None)
    assert found.tick(NOW + 5 + RESIZE_DELAY_S) == [Form(2, frozenset(), 4, gracefully=True)]


def test_elastic_job_grows_when_the_next_replicas_join() -> None:
    found = elastic(replicas=2, here=2)
    assert found.join(hello(3), NOW) == []
    assert found.join(hello(2), NOW + 1) == []
    assert found.tick(NOW + 1 + RESIZE_DELAY_S) == [Form(2, frozenset(), 4, gracefully=True)]
    assert found.state.replicas == 4


def test_elastic_job_shrinks_when_the_last_replicas_are_asked_to_terminate() -> None:
    found = elastic(replicas=3, here=3)
    for replica in (1, 2):
        found.stop(f"pod-{replica}", NOW)
    found.leave("pod-2", NOW)
    assert found.ended(end(0, 75), 1, NOW) == []
    assert found.tick(NOW + RESIZE_DELAY_S) == [Form(2, frozenset(), 1)]


def test_elastic_job_waits_for_an_evicted_pod_in_its_middle() -> None:
    found = elastic(replicas=3, here=3)
    found.stop("pod-1", NOW)
    assert [found.ended(end(rank, 75), 1, NOW) for rank in (0, 1, 2)] == [[], [], []]
    found.leave("pod-1", NOW)
    assert found.tick(NOW + RESIZE_DELAY_S) == []
    assert found.join(hello(1, "again"), NOW + 5) == [Form(2, frozenset(), 3)]


def test_elastic_job_waits_for_a_pod_that_leaves_after_its_ranks_stopped_with_another_pod() -> None:
    """Node after node is drained: the ranks of the second one have saved, and are not done."""
    found = elastic(replicas=4, here=4)
    found.stop("pod-1", NOW)
    for rank in (0, 2, 3, 1):
        found.ended(end(rank, 75), 1, NOW)
    found.leave("pod-1", NOW)
    found.stop("pod-2", NOW + 5)
    found.leave("pod-2", NOW + 5)
    assert found.missing == [1, 2]
    assert found.join(hello(1, "again"), NOW + 10) == []
    assert found.join(hello(2, "again"), NOW + 11) == [Form(2, frozenset(), 4)]


def test_agreed_stop_is_not_the_end_of_the_replicas_that_decide() -> None:
    found = elastic(replicas=3, here=3)
    found.job = replace(found.job, deciding=frozenset({0}))
    found.stop("pod-2", NOW)
    assert [found.ended(end(rank, 75), 1, NOW) for rank in (0, 1, 2)] == [[], [], []]
    assert found.tick(NOW + RESIZE_DELAY_S) == [Form(2, frozenset(), 2)]


def test_elastic_job_shrinks_if_a_lost_replica_does_not_come_back() -> None:
    found = elastic(replicas=3, here=3)
    found.leave("pod-2", NOW)
    assert found.tick(NOW + SHRINK_DELAY_S - 1) == []
    assert found.deadline == NOW + SHRINK_DELAY_S
    assert found.tick(NOW + SHRINK_DELAY_S) == [Form(2, frozenset(), 2)]
    assert found.state.shift == 1
    assert found.join(hello(2, "again"), NOW + 100) == []
    assert found.tick(NOW + 100 + RESIZE_DELAY_S) == [Form(3, frozenset(), 3, gracefully=True)]


@pytest.mark.parametrize("other", [2, 4], ids=["that takes part", "that is not needed"])
def test_replica_that_comes_and_goes_does_not_postpone_that_the_job_shrinks(other: int) -> None:
    found = elastic(replicas=4, here=4, most=5)
    found.leave("pod-3", NOW)
    for second in range(0, 60, 20):
        found.leave(found.agents.get(other, ""), NOW + second)
        found.join(hello(other, f"pod-{other}-{second}"), NOW + second + 10)
        assert found.tick(NOW + second + 10 + RESIZE_DELAY_S) == []
    assert found.tick(NOW + SHRINK_DELAY_S) == [Form(2, frozenset(), 3)]


def test_starting_job_waits_for_the_next_replica_as_long_as_pods_are_coming() -> None:
    """It could not grow later without a checkpoint folder."""
    found = elastic(replicas=4, here=0, saves=False)
    for replica in range(3):
        assert found.join(hello(replica), NOW + 50 * replica) == []
        assert found.tick(NOW + 50 * replica + SHRINK_DELAY_S - 1) == []
    assert found.join(hello(3), NOW + 150) == [Form(1, frozenset(), 4)]


def test_replicas_that_come_back_together_count_as_one_change() -> None:
    found = elastic(replicas=4, here=4)
    found.leave("pod-3", NOW)
    found.leave("pod-2", NOW + 30)
    assert found.tick(NOW + SHRINK_DELAY_S) == []
    assert found.join(hello(2, "again"), NOW + 80) == []
    assert found.tick(NOW + 81) == []
    assert found.join(hello(3, "again"), NOW + 81) == [Form(2, frozenset({0, 1}), 4)]


def test_replica_that_an_elastic_job_continues_without_is_missing_unless_it_was_asked_to_go() -> None:
    """The operator replaces it, if its pod still runs; else the job would stay small for ever."""
    found = elastic(replicas=4, here=4)
    found.stop("pod-3", NOW)
    for replica in (2, 3):
        found.leave(f"pod-{replica}", NOW)
    found.tick(NOW + SHRINK_DELAY_S)
    assert (found.job.replicas, found.waited_for(NOW + 200)) == (2, {2: 200.0})


def test_elastic_job_starts_smaller_if_not_all_replicas_join() -> None:
    found = elastic(replicas=4, here=2, least=2)
    assert found.tick(NOW + SHRINK_DELAY_S) == [Form(1, frozenset(), 2)]


def test_elastic_job_without_a_checkpoint_folder_does_not_grow() -> None:
    found = elastic(replicas=2, here=3, saves=False)
    assert found.tick(NOW + RESIZE_DELAY_S) == []
    assert found.state.generation == 1


def test_elastic_job_whose_save_failed_grows_once_a_save_succeeds() -> None:
    """All ranks would start again from an older checkpoint, or from none."""
    found = elastic(replicas=2, here=3)
    found.saves(NOW, works=False)
    assert found.tick(NOW + RESIZE_DELAY_S) == []
    found.saves(NOW + 60, works=True)
    assert found.tick(NOW + 60 + RESIZE_DELAY_S) == [Form(2, frozenset(), 3, gracefully=True)]


@pytest.mark.parametrize(("wished", "remembered"), [(4, 2), (2, 4)])
def test_new_coordinator_learns_the_size_from_the_others(wished: int, remembered: int) -> None:
    """Unless the job has been scaled down since."""
    found = elastic(replicas=wished, here=0)
    for replica in (1, 0):
        actions = found.join(hello(replica, state=CoordinatorState(generation=5, replicas=remembered)), NOW)
    assert actions == [Form(6, frozenset(), 2)]


@pytest.mark.parametrize(("remembered", "kept"), [(3, {1, 2}), (4, set())], ids=["same size", "scaled down"])
def test_new_coordinator_keeps_no_rank_of_another_size(remembered: int, kept: set[int]) -> None:
    found = elastic(replicas=3, here=1)
    state = CoordinatorState(generation=5, replicas=remembered)
    for replica in (1, 2):
        rank = RankState(generation=5, holds=True, is_ready=True)
        actions = found.join(hello(replica, ranks={replica: rank}, state=state), NOW)
    assert actions == [Form(6, frozenset(kept), 3)]


def late_survivors(*, saves: bool) -> Membership:
    """Replica 0 was replaced and began alone, because the others could not reach it for a minute."""
    found = elastic(replicas=3, here=1, saves=saves)
    assert found.tick(NOW + SHRINK_DELAY_S) == [Form(1, frozenset(), 1)]
    assert found.ready(0, 1, NOW + 61) == [Go(1)]
    state = CoordinatorState(generation=5, replicas=3)
    for replica in (1, 2):
        rank = RankState(generation=5, holds=True, is_ready=True)
        assert found.join(hello(replica, ranks={replica: rank}, state=state), NOW + 70) == []
    return found


def test_survivors_that_come_too_late_join_a_job_that_can_grow() -> None:
    found = late_survivors(saves=True)
    assert found.tick(NOW + 70 + RESIZE_DELAY_S) == [Form(6, frozenset(), 3, gracefully=True)]


def test_survivors_that_come_too_late_wait_beside_a_job_that_cannot_grow() -> None:
    found = late_survivors(saves=False)
    assert found.tick(NOW + 70 + RESIZE_DELAY_S) == []
    found.restarts.budget = RestartBudget(restarts=1)
    assert found.ended(end(0, 137), 1, NOW + 80) == [Form(6, frozenset(), 1)], "it gets no state from them"
    assert found.ended(end(0, 0), 6, NOW + 90) == [End(None)]


def test_elastic_job_without_a_checkpoint_folder_waits_before_it_shrinks() -> None:
    """Shrinking costs the run, and the pod that was asked to terminate may be replaced."""
    found = elastic(replicas=3, here=3, saves=False)
    found.stop("pod-2", NOW)
    assert found.tick(NOW + RESIZE_DELAY_S) == []
    found.leave("pod-2", NOW + 10)
    assert found.tick(NOW + 10 + RESIZE_DELAY_S) == []
    assert found.tick(NOW + 10 + SHRINK_DELAY_S) == [Form(2, frozenset(), 2)]


def test_job_does_not_shrink_for_a_pod_in_the_middle_that_terminates_slowly() -> None:
    found = elastic(replicas=3, here=3)
    found.stop("pod-1", NOW)
    assert found.tick(NOW + 2 * SHRINK_DELAY_S) == []


def test_job_ends_even_if_a_waiting_pod_is_asked_to_terminate() -> None:
    found = elastic(replicas=2, here=2)
    found.join(hello(3), NOW)
    found.stop("pod-3", NOW)
    assert [found.ended(end(rank, 0), 1, NOW) for rank in range(2)] == [[], [End(None)]]


def test_replica_that_left_once_and_is_lost_later_is_waited_for() -> None:
    found = elastic(replicas=3, here=3)
    found.stop("pod-2", NOW)
    found.leave("pod-2", NOW)
    assert found.tick(NOW + RESIZE_DELAY_S) == [Form(2, frozenset(), 2)]
    found.join(hello(2, "again"), NOW + 5)
    assert found.tick(NOW + 5 + RESIZE_DELAY_S) == [Form(3, frozenset(), 3, gracefully=True)]
    found.leave("again", NOW + 10)
    assert found.tick(NOW + 10 + RESIZE_DELAY_S) == []


def test_replica_beyond_the_largest_size_is_refused() -> None:
    why = "the pods disagree on the job's size: replica 4 of 4"
    assert elastic(replicas=2, here=0).join(hello(4), NOW) == [Refuse("pod-4", why, for_good=True)]


class ElasticMachine(RuleBasedStateMachine):
    """Pods of an elastic job join, leave and are lost, in any order."""

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
        self.found.leave(self.found.agents.get(replica, "unknown"), self.now)

    @rule(replica=st.integers(0, 3))
    def stop(self, replica: int) -> None:
        self.found.stop(self.found.agents.get(replica, "unknown"), self.now)

    @precondition(lambda self: self.formed is not None)
    @rule(rank=st.integers(0, 3), code=st.sampled_from([75, 75, 137]))
    def ended(self, rank: int, code: int) -> None:
        if self.formed and rank < self.formed.replicas:
            self.act(self.found.ended(end(rank, code), self.formed.generation, self.now))

    @rule(seconds=st.sampled_from([0.1, 2.0, SHRINK_DELAY_S]))
    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.found.tick(self.now))

    @invariant()
    def waits_only_for_who_may_come(self) -> None:
        """If replica 0 has joined and time has passed, ranks train or the job is over."""
        if 0 in self.found.agents and not self.found.agents.keys() & self.found.stopping:
            for _ in range(2):
                self.act(self.found.tick(self.now + SHRINK_DELAY_S + CAUSE_WAIT_S))
            assert self.found.is_formed or self.found.is_over
            self.now += SHRINK_DELAY_S + CAUSE_WAIT_S


ElasticMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
test_elastic_machine = ElasticMachine.TestCase
