"""When a silence is judged: decided by times, steps and pauses alone."""

from random import Random

import pytest

from dtj.agent.coordinator.watch.hang import (
    FIRST_STEP_S,
    LIMIT_IN_STEPS,
    MIN_LIMIT_S,
    MOST_ADDED_S,
    PROBE_S,
    REPORT_DELAY_S,
    StepTimes,
    Watchdog,
)
from tests.unit.dtj.cost import only_single_items

SHORT = MIN_LIMIT_S - REPORT_DELAY_S


def stepping(
    *, ranks: int = 2, step_s: float = 1.0, steps: int = 20, timeout_s: float | None = None
) -> Watchdog:
    """Ranks that have completed some steps, the last one at `steps * step_s`."""
    found = Watchdog(timeout_s=timeout_s)
    found.start_generation(range(ranks), 0.0)
    for step in range(1, steps + 1):
        for rank in range(ranks):
            found.observe(rank, step, step * step_s)
    return found


@pytest.mark.parametrize(
    ("watchdog", "now", "expected"),
    [
        pytest.param(stepping(), 20 + MIN_LIMIT_S - 1, None, id="short steps: half a minute is not judged"),
        pytest.param(stepping(), 20 + MIN_LIMIT_S + 1, MIN_LIMIT_S + 1, id="short steps: more is"),
        pytest.param(stepping(step_s=10), 200 + 49, None, id="long steps: five times the usual is not"),
        pytest.param(stepping(step_s=10), 200 + 51, 51, id="long steps: more is"),
        pytest.param(stepping(steps=3), 3 + 299, None, id="the first steps may take ten times as long"),
        pytest.param(stepping(steps=3), 3 + 301, 301, id="but no longer"),
        pytest.param(stepping(timeout_s=5), 20 + 6, 6, id="the user's limit"),
        pytest.param(stepping(steps=0), 1e6, None, id="before the first step silence alone means nothing"),
    ],
)
def test_silent_for(watchdog: Watchdog, now: float, expected: float | None) -> None:
    assert watchdog.silent_for(now) == expected


@pytest.mark.parametrize(
    ("lengths", "limit_s"),
    [
        pytest.param([1.0] * 64, MIN_LIMIT_S, id="short steps"),
        pytest.param([60.0] * 64, 300.0, id="five long steps"),
        pytest.param([3600.0] * 64, 3600.0 + MOST_ADDED_S, id="very long steps: a quarter of an hour more"),
        pytest.param([60.0, 60.0, 3.0] * 21, 300.0, id="a ragged last step of an epoch"),
        pytest.param([60.0, 3.0, 3.0] * 21, MIN_LIMIT_S, id="one long step in an epoch"),
        pytest.param([1.0] * 63 + [600.0], MIN_LIMIT_S, id="one undeclared step of ten minutes"),
        pytest.param([600.0, 1.0], MIN_LIMIT_S, id="the second step, in which the model was compiled"),
        pytest.param([600.0], 600.0 + MOST_ADDED_S, id="nothing is known but that step"),
        pytest.param([1.0] * 62 + [100.0] * 2, MIN_LIMIT_S, id="it happens again and again"),
    ],
)
def test_limit_follows_from_the_last_64_steps(lengths: list[float], limit_s: float) -> None:
    times = StepTimes()
    for step, length in enumerate([*lengths, 0.0]):  # a length counts once the next step is done
        times.observe(step, length)
    assert times.limit_s == limit_s


@pytest.mark.parametrize(
    ("lengths", "limit_s"),
    [
        pytest.param([60.0, 3.0, 3.0] * 21, 90.0, id="one long step in an epoch: half as long again"),
        pytest.param([1.0] * 63 + [600.0], 1.5, id="one undeclared step of ten minutes"),
        pytest.param([1.0] * 62 + [100.0] * 2, 150.0, id="it happens again and again"),
        pytest.param([3600.0] * 64, 3600.0 + MOST_ADDED_S, id="very long steps: a quarter of an hour more"),
    ],
)
def test_ranks_that_do_nothing_are_left_alone_as_long_as_long_steps_take(
    lengths: list[float], limit_s: float
) -> None:
    times = StepTimes()
    for step, length in enumerate([*lengths, 0.0]):
        times.observe(step, length)
    assert times.long_limit_s == limit_s


def test_usual_step_is_that_of_the_slowest_rank() -> None:
    times = StepTimes()
    for step in range(20):
        for rank in range(8):
            times.observe(step, 20.0 if rank == 5 else 1.0)
    assert times.limit_s == 20 * LIMIT_IN_STEPS


@pytest.mark.parametrize("ranks", [1, 8, 128])
def test_ragged_epochs_cause_no_alarm_whatever_the_number_of_ranks(ranks: int) -> None:
    """Ten epochs of 20 steps of 60 s, each with a last step of 3 s; every length varies by a tenth."""
    rng, watchdog, now = Random(ranks), Watchdog(), 0.0
    watchdog.start_generation(range(ranks), now)
    for step in range(1, 201):
        now += (3.0 if step % 20 == 0 else 60.0) * rng.uniform(0.9, 1.1)
        assert watchdog.is_before_first_step or watchdog.silent_for(now) is None, step
        for rank in range(ranks):
            watchdog.observe(rank, step, now + rng.uniform(0, 0.25))
    assert 250 < (watchdog.limit_s or 0) < 350


def test_first_steps_of_a_generation_may_take_longer_but_raise_no_limit_above_ten_minutes() -> None:
    watchdog = stepping(step_s=60.0)
    watchdog.start_generation(range(2), 2000.0)
    assert watchdog.limit_s == FIRST_STEP_S - REPORT_DELAY_S
    long = stepping(step_s=600.0)
    before = long.limit_s
    long.start_generation(range(2), 20_000.0)
    assert long.limit_s == before


def test_pause_of_one_rank_excuses_all_and_silence_counts_from_its_end() -> None:
    watchdog = stepping()
    watchdog.observe(1, 20, 25.0, pause_s=0.0)
    assert (watchdog.due, watchdog.silent_for(1e6)) == (None, None)
    watchdog.observe(1, 20, 1000.0)
    assert watchdog.silent_for(1000.0 + MIN_LIMIT_S - 1) is None  # rank 0 has waited, and may continue
    for step in (21, 22):
        for rank in range(2):
            watchdog.observe(rank, step, 1000.0 + step)
    assert watchdog.limit_s == SHORT, "the pause was not counted as a step, not even of the rank that waited"


def test_pause_is_judged_as_soon_as_its_own_limit_is_over() -> None:
    watchdog = stepping()
    watchdog.observe(1, 20, 25.0, pause_s=900.0)
    assert watchdog.due == (925.0 - PROBE_S, 925.0)
    assert not watchdog.is_overdue(1, 924.0)
    assert watchdog.is_overdue(1, 925.0)
    assert (watchdog.silent_for(924.0), watchdog.silent_for(925.0), watchdog.since) == (None, 900.0, 925.0)
    watchdog.look_again(925.0)
    assert watchdog.due == (925.0 + SHORT - PROBE_S, 925.0 + SHORT)


def test_long_pause_that_is_over_does_not_extend_the_pause_that_follows() -> None:
    """Both ranks save; then one declares a short pause, before the agent has seen that its save is done."""
    watchdog = stepping(timeout_s=1)
    for rank in range(2):
        watchdog.observe(rank, 20, 25.0, pause_s=900.0)
    watchdog.observe(0, 20, 26.0, pause_s=2.0)
    assert watchdog.due == (925.0 - 0.5, 925.0), "rank 1 is still in its save"
    watchdog.observe(1, 21, 26.0)
    assert watchdog.due == (28.0 - 0.5, 28.0)
    watchdog.observe(1, 21, 26.0, pause_s=900.0)
    watchdog.ended(1)
    assert watchdog.due == (28.0 - 0.5, 28.0)


def test_short_pause_does_not_shorten_the_usual_limit() -> None:
    watchdog = stepping()
    watchdog.observe(1, 20, 20.0, pause_s=1.0)
    assert watchdog.due == (20 + SHORT - PROBE_S, 20 + SHORT)


def test_usual_step_time_is_measured_from_steps_alone() -> None:
    """Not from declared pauses, nor from a generation's first step, which includes the rendezvous."""
    watchdog = stepping()
    for step in range(21, 121):
        watchdog.observe(0, step, 100.0 * step, pause_s=1000.0)
    for generation in range(100):
        watchdog.start_generation(range(2), 1e6 * generation)
        for step in range(2):
            watchdog.observe(0, step, 1e6 * generation + 1000 * step)
    watchdog.start_generation(range(1), 1e9)
    for step in range(10):
        watchdog.observe(0, step, 1e9 + step)
    assert watchdog.limit_s == SHORT


def test_heartbeat_after_many_steps_is_not_a_long_step() -> None:
    watchdog = Watchdog()
    watchdog.start_generation(range(1), 0.0)
    for step in range(0, 200, 20):
        watchdog.observe(0, step, float(step))
    assert watchdog.limit_s == SHORT


def test_others_may_wait_for_a_rank_that_is_starting() -> None:
    watchdog = Watchdog()
    watchdog.start_generation(range(2), 0.0)
    for step in range(20):
        watchdog.observe(0, step, float(step))
    watchdog.observe(1, 19, 19.0)
    assert watchdog.silent_for(19 + MIN_LIMIT_S) is None
    assert watchdog.silent_for(19 + 10 * MIN_LIMIT_S)


def test_pause_ends_with_its_generation() -> None:
    watchdog = stepping()
    watchdog.observe(1, 20, 25.0, pause_s=0.0)
    watchdog.start_generation(range(2), 30.0)
    assert watchdog.silent_for(30 + 10 * MIN_LIMIT_S)


def test_pause_ends_with_its_rank() -> None:
    """Otherwise ranks that wait for it in a collective would go unnoticed."""
    watchdog = stepping()
    watchdog.observe(1, 20, 25.0, pause_s=0.0)
    watchdog.ended(1)
    assert watchdog.ranks == {0}
    assert watchdog.silent_for(25 + 2 * MIN_LIMIT_S) == 2 * MIN_LIMIT_S
    watchdog.ended(1)  # of an agent that reports it again
    watchdog.ended(0)
    assert watchdog.due is None, "no rank is expected to step"


def test_ranks_are_examined_before_the_limit_however_short_it_is() -> None:
    assert stepping(timeout_s=1).due == (20.5, 21)
    assert stepping(timeout_s=100).due == (20 + 100 - PROBE_S, 20 + 100)


def test_silence_that_is_not_a_hang_so_far_is_judged_again_and_its_length_counts_from_its_start() -> None:
    watchdog = stepping()
    watchdog.look_again(100.0)
    assert watchdog.due == (100 + SHORT - PROBE_S, 100 + SHORT)
    assert watchdog.silent_for(100 + SHORT) == 80 + SHORT
    watchdog.excuse(200.0)
    assert watchdog.silent_for(200 + SHORT) == SHORT


def starting(*, timeout_s: float | None = None, stopped: bool = False) -> Watchdog:
    """Two ranks that were last active at 100; rank 1 may have been stopped then."""
    found = Watchdog(timeout_s=timeout_s)
    found.start_generation(range(2), 0.0)
    found.observe_activity(0, 100.0, is_stopped=False)
    found.observe_activity(1, 100.0, is_stopped=stopped)
    return found


@pytest.mark.parametrize(
    ("watchdog", "limit_s"),
    [
        pytest.param(starting(), FIRST_STEP_S, id="no rank is active"),
        pytest.param(starting(timeout_s=5), 50, id="ten times the user's limit, as for all first steps"),
        pytest.param(starting(stopped=True), MIN_LIMIT_S, id="a stopped process"),
        pytest.param(starting(stopped=True, timeout_s=16), 16, id="a stopped process, and the user's limit"),
    ],
)
def test_before_the_first_step_a_rank_without_activity_is_silent(watchdog: Watchdog, limit_s: float) -> None:
    assert watchdog.due == (100 + limit_s - PROBE_S, 100 + limit_s)
    watchdog.observe_activity(1, 200.0, is_stopped=False)
    limit_s = 10 * watchdog.timeout_s if watchdog.timeout_s else FIRST_STEP_S
    assert watchdog.due == (200 + limit_s - PROBE_S, 200 + limit_s), "it is active, or continued"


def test_ranks_with_unknown_activity_are_not_judged_before_the_first_step() -> None:
    watchdog = Watchdog()
    for _generation in range(2):
        watchdog.start_generation(range(2), 0.0)
        known = []
        for rank in range(2):
            watchdog.observe_activity(rank, 0.0, is_stopped=False)
            known.append(watchdog.due is not None)
        assert known == [False, True]


def test_after_the_first_step_only_steps_count() -> None:
    """A rank in an endless loop uses CPU time too."""
    watchdog = stepping()
    watchdog.observe_activity(1, 40.0, is_stopped=False)
    assert watchdog.silent_for(20 + MIN_LIMIT_S) == MIN_LIMIT_S


def test_no_event_reads_the_state_of_all_ranks() -> None:
    """With 10,000 ranks each would cost a thousand times as much as with ten."""
    watchdog = stepping(ranks=4)
    only_single_items(watchdog)
    for step in (21, 22):
        watchdog.observe(3, step, 6.0)
    watchdog.observe(2, None, 6.0, pause_s=5.0)
    watchdog.observe(2, None, 6.0)
    watchdog.observe_activity(2, 6.0, is_stopped=False)
    assert watchdog.due
    assert watchdog.silent_for(7.0) is None
    watchdog.ended(2)
