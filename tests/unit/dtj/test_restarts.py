"""Which failures start the ranks again, when, and how often."""

from dataclasses import replace

import pytest

from dtj.agent.coordinator.membership import VERDICT_S, Membership
from dtj.agent.coordinator.restarts import Restarts
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.protocol import CoordinatorState, End, Form, Job, RestartBudget, Say
from tests.unit.dtj.test_membership import NOW, end, formed, hello, membership

OTHER = replace(end(1, 1), message="KeyError: 2", reason="Exception")


def test_spent_budget_ends_the_job() -> None:
    found = formed(restarts=1)
    found.ended(end(1, 1), 1, NOW)
    for rank in range(3):
        found.ready(rank, 2, NOW)
    last = end(2, 1)
    assert found.ended(last, 2, NOW) == []
    assert found.tick(NOW + VERDICT_S) == [End(last), Say("no further restart: 1 of 1 are used")]
    assert (found.failure, found.failed_in) == (end(1, 1), 1), "only this one was healed"


def fails(found: Membership, now: float, ending: Ending | None = None) -> bool:
    """A rank of a plain program fails, so that all ranks start again; False if that was the last time."""
    actions = found.ended(ending or end(1, 1), found.state.generation, now) or found.tick(now + VERDICT_S)
    return isinstance(actions[0], Form)


def plain(*, restarts: int = 5, **budget: float) -> Membership:
    found = membership(restarts=restarts)
    found.restarts.budget = replace(found.restarts.budget, **budget)  # type: ignore[arg-type]
    for replica in range(3):
        found.join(hello(replica), NOW)
    return found


@pytest.mark.parametrize(
    ("last_step", "seconds", "is_counted", "row"),
    [
        pytest.param(11, 2.0, True, 1, id="a life of a plain program that trains"),
        pytest.param(10, 2.0, True, 2, id="too few steps"),
        pytest.param(11, 1.9, True, 2, id="too short a time"),
        pytest.param(11, 2.0, False, 2, id="repeated steps of a program that reports them"),
        pytest.param(21, 0.1, False, 1, id="a new step"),
    ],
)
def test_what_is_progress(last_step: int, seconds: float, is_counted: bool, row: int) -> None:
    found = plain()
    found.stepped(20, NOW, is_counted=is_counted)
    assert fails(found, NOW)
    assert found.state.without_progress == 1

    found.stepped(1, NOW, is_counted=is_counted)
    found.stepped(last_step, NOW + seconds, is_counted=is_counted)
    assert fails(found, NOW + seconds)

    assert found.state.without_progress == row


def test_plain_program_that_dies_at_the_same_early_step_is_given_up_exactly_after_its_budget() -> None:
    found = plain(without_progress=2)
    lives = []
    for _ in range(3):
        found.stepped(3, NOW, is_counted=True)
        lives.append(fails(found, NOW))
    assert lives == [True, True, False]
    assert (found.state.in_place, found.state.without_progress) == (2, 2)


def test_ranks_that_fail_again_without_progress_wait_for_the_backoff() -> None:
    found = plain(without_progress=5, backoff_s=10.0)
    found.stepped(20, NOW)
    assert fails(found, NOW), "at once, since there was progress"

    said = "the ranks start again in 20 s: 2 failures in a row without progress"
    assert found.ended(end(1, 1), 2, NOW) == [Say(said)]

    assert not any(isinstance(action, Form) for action in found.join(hello(1, "new pod"), NOW + 5))
    assert found.tick(NOW + 19.9) == []
    assert found.deadline == NOW + 20
    assert found.tick(NOW + 20) == [Form(3, frozenset(), 3)]


def test_ranks_of_a_program_without_steps_start_again_at_once_after_another_error() -> None:
    """It may have trained for hours."""
    found = plain(backoff_s=1.0)
    assert [fails(found, NOW, each) for each in (end(1, 1), OTHER, end(1, 1))] == [True] * 3
    said = "the ranks start again in 2 s: 2 failures in a row without progress"
    assert found.ended(end(2, 1), found.state.generation, NOW) == [Say(said)]


@pytest.mark.parametrize(
    ("endings", "lives"),
    [
        pytest.param([end(1, 1), end(2, 1), end(1, 1)], [True, True, False], id="the same code, on any rank"),
        pytest.param([end(1, 1), OTHER, end(1, 1), end(1, 1)], [True] * 4, id="another between"),
        pytest.param(
            [replace(end(rank, 137), reason="OOMKilled", message=f"{rank} GiB") for rank in range(3)],
            [True, True, False],
            id="out of memory, whatever the limit is",
        ),
        pytest.param([end(1, 137)] * 4, [True] * 4, id="a signal, which may come from outside"),
    ],
)
def test_error_that_a_program_without_steps_repeats_spends_the_budget(
    endings: list[Ending], lives: list[bool]
) -> None:
    found = plain(without_progress=2)
    assert [fails(found, NOW, ending) for ending in endings] == lives


def test_error_of_a_life_of_ten_minutes_starts_a_new_row() -> None:
    found = plain(without_progress=2)
    assert [fails(found, NOW + at) for at in (0, 1, 601, 602)] == [True] * 4
    assert not fails(found, NOW + 603)
    assert found.state.identical == 3


def test_row_of_errors_continues_with_the_next_coordinator() -> None:
    found = plain(without_progress=2)
    assert fails(found, NOW)

    heir = membership()
    heir.restarts.budget = found.restarts.budget
    heir.join(hello(1, state=found.state), NOW)
    heir.join(hello(0, "new pod"), NOW)
    heir.join(hello(2, state=found.state), NOW)

    assert [fails(heir, NOW), fails(heir, NOW)] == [True, False]


def test_restarts_that_the_operator_counted_belong_to_the_row() -> None:
    found = plain(without_progress=2)
    found.stepped(3, NOW)
    assert fails(found, NOW)

    found.join(hello(1, "new pod", state=CoordinatorState(without_progress=2)), NOW)

    assert found.state.without_progress == 2
    assert not fails(found, NOW)


@pytest.mark.parametrize(
    ("allowed", "left"),
    [
        pytest.param(None, 3, id="unknown"),
        pytest.param(5, 3, id="all that was allowed"),
        pytest.param(7, 5, id="maxRestarts was raised, or older ones do not count any more"),
        pytest.param(4, 2, id="the operator counted one"),
        pytest.param(2, 0, id="it counted all"),
        pytest.param(0, 0, id="it counts less in place than there was"),
    ],
)
def test_restarts_that_the_operator_counted_are_not_left(allowed: int | None, left: int) -> None:
    """It replaced the pod of replica 1, after two restarts in place."""
    found = plain(restarts=5, without_progress=9)
    assert fails(found, NOW)
    assert fails(found, NOW)
    found.join(hello(1, "new pod", allowed=allowed), NOW)
    assert [fails(found, NOW) for _ in range(left + 1)] == [True] * left + [False]


def test_pod_that_was_created_earlier_does_not_change_what_is_left() -> None:
    found = plain(restarts=5)
    for replica, restarts, allowed, known in ((1, 2, 3, 3), (0, 1, 9, 3), (0, 3, 5, 5)):
        found.join(hello(replica, f"pod {restarts}", restarts=restarts, allowed=allowed), NOW)
        assert found.restarts.budget.restarts == known


def test_only_a_new_pod_tells_what_the_operator_counted() -> None:
    found = plain(restarts=5)
    found.join(hello(1, "pod-1", state=found.state, allowed=1), NOW)
    assert found.restarts.budget.restarts == 5


def test_restart_in_place_counts_for_the_window_of_the_budget() -> None:
    found = plain(restarts=2, window_s=60.0)
    assert [fails(found, NOW + s) for s in (0, 30, 65, 70)] == [True, True, True, False]
    assert found.state.in_place == 3


@pytest.mark.parametrize("theirs", [0, 2])
def test_restart_count_is_the_highest_that_is_remembered(theirs: int) -> None:
    """By the operator, if the pods that saw them are gone; or by a survivor, which may have seen one more."""
    budget = RestartBudget(restarts=3, spent=1)
    job = Job(uid="u", attempt=2, replicas=2, processes=1)
    found = Membership(
        job=job, restarts=Restarts(budget=budget), state=CoordinatorState(in_place=budget.spent)
    )
    found.join(hello(0), NOW)
    found.join(hello(1, state=CoordinatorState(generation=4, in_place=theirs)), NOW)
    assert found.state.in_place == max(1, theirs)
    for left in reversed(range(3 - found.state.in_place)):
        found.ended(end(1, 1), found.state.generation, NOW)
        for rank in range(2):
            found.ready(rank, found.state.generation, NOW)
        assert (found.state.in_place, found.is_over) == (3 - left, False)
    found.ended(end(1, 1), found.state.generation, NOW)
    why = Say("no further restart: 3 of 3 are used")
    assert found.tick(NOW + VERDICT_S) == [End(end(1, 1)), why]


def test_restarts_without_a_new_step_are_bounded_and_a_step_resets_their_count() -> None:
    found = formed(restarts=100)
    found.stepped(10, NOW)
    forms = 0
    for generation in range(1, 20):
        for rank in range(3):
            found.ready(rank, generation, NOW)
        if generation == 3:
            found.stepped(11, NOW)
        actions = found.ended(end(1, 1), generation, NOW) or found.tick(NOW + VERDICT_S)
        if not isinstance(actions[0], Form):
            break
        forms += 1
    assert forms == 2 + 3  # two before step 11, then three more in a row
    assert isinstance(actions[0], End)
