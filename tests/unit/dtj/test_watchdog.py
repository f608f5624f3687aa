"""Which silence is a hang, and who is to blame for it: decided by times, steps and stacks alone."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import dtj
from dtj.agent.hang import (
    FIRST_STEP_S,
    MIN_LIMIT_S,
    REPORT_DELAY_S,
    WAITING_FRAMES,
    Probe,
    Watchdog,
    culprits,
    culprits_before_first_step,
    describe_hang,
    innermost,
)

WAITING = Probe(frame="/lib/torch/autograd/graph.py:865 in _engine_run_backward")
LOADING = Probe(frame="/lib/torch/utils/data/dataloader.py:1 in _try_get_data")


def stepping(
    *, ranks: int = 2, step_s: float = 1.0, steps: int = 20, timeout_s: float | None = None
) -> Watchdog:
    """Ranks that have done some steps, the last of them at the time returned by `end_of`."""
    found = Watchdog(timeout_s=timeout_s)
    found.start_generation(range(ranks), 0.0)
    for step in range(1, steps + 1):
        for rank in range(ranks):
            found.observe(rank, step, step * step_s, paused=False)
    return found


@pytest.mark.parametrize(
    ("watchdog", "now", "expected"),
    [
        pytest.param(stepping(), 20 + MIN_LIMIT_S - 1, None, id="short steps: half a minute is no hang"),
        pytest.param(stepping(), 20 + MIN_LIMIT_S + 1, MIN_LIMIT_S + 1, id="short steps: more is one"),
        pytest.param(stepping(step_s=10), 200 + 49, None, id="long steps: five times the usual are none"),
        pytest.param(stepping(step_s=10), 200 + 51, 51, id="long steps: more are one"),
        pytest.param(stepping(steps=3), 3 + 299, None, id="the first steps may take ten times as long"),
        pytest.param(stepping(steps=3), 3 + 301, 301, id="but not for ever"),
        pytest.param(stepping(timeout_s=5), 20 + 6, 6, id="the user's limit"),
        pytest.param(stepping(steps=0), 1e6, None, id="before the first step silence alone means nothing"),
    ],
)
def test_silent_for(watchdog: Watchdog, now: float, expected: float | None) -> None:
    assert watchdog.silent_for(now) == expected


def test_pause_of_one_rank_excuses_all_and_its_end_starts_the_count_anew() -> None:
    watchdog = stepping()
    watchdog.observe(1, 20, 25.0, paused=True)
    assert watchdog.silent_for(1e6) is None
    watchdog.observe(1, 20, 1000.0, paused=False)
    assert watchdog.silent_for(1000.0 + MIN_LIMIT_S - 1) is None  # rank 0 has waited, and may go on
    assert watchdog.limit(0) == MIN_LIMIT_S - REPORT_DELAY_S  # the pause did not enter the usual length


def test_usual_length_is_that_of_steps_alone() -> None:
    """Not of declared pauses, nor of a generation's first one, for which the ranks come together."""
    watchdog = stepping()
    for step in range(21, 121):
        watchdog.observe(0, step, 100.0 * step, paused=True)
    for generation in range(100):
        watchdog.start_generation(range(2), 1e6 * generation)
        for step in range(2):
            watchdog.observe(0, step, 1e6 * generation + 1000 * step, paused=False)
    watchdog.start_generation(range(1), 1e9)
    for step in range(10):
        watchdog.observe(0, step, 1e9 + step, paused=False)
    assert watchdog.limit(0) == MIN_LIMIT_S - REPORT_DELAY_S


def test_heartbeat_that_tells_of_many_steps_is_not_a_long_step() -> None:
    watchdog = Watchdog()
    watchdog.start_generation(range(1), 0.0)
    for step in range(0, 200, 20):
        watchdog.observe(0, step, float(step), paused=False)
    assert watchdog.limit(0) == MIN_LIMIT_S - REPORT_DELAY_S


def test_rank_in_its_start_up_may_be_what_the_others_wait_for() -> None:
    watchdog = Watchdog()
    watchdog.start_generation(range(2), 0.0)
    for step in range(20):
        watchdog.observe(0, step, float(step), paused=False)
    watchdog.observe(1, 19, 19.0, paused=False)
    assert watchdog.silent_for(19 + MIN_LIMIT_S) is None
    assert watchdog.silent_for(19 + 10 * MIN_LIMIT_S)


def test_pause_ends_with_its_generation() -> None:
    watchdog = stepping()
    watchdog.observe(1, 20, 25.0, paused=True)
    watchdog.start_generation(range(2), 30.0)
    assert watchdog.silent_for(30 + 10 * MIN_LIMIT_S)


def test_pause_ends_with_its_rank() -> None:
    """Others that it left in a collective would wait for it unseen."""
    watchdog = stepping()
    watchdog.observe(1, 20, 25.0, paused=True)
    watchdog.ended(1)
    assert watchdog.silent_for(20 + 2 * MIN_LIMIT_S) == 2 * MIN_LIMIT_S


def test_ranks_are_looked_at_before_the_limit_is_over_however_short_it_is() -> None:
    assert stepping(timeout_s=1).due == (20.5, 21)
    assert stepping(timeout_s=100).due == (20 + 98, 20 + 100)


def test_rank_that_is_done_is_not_expected_to_step() -> None:
    watchdog = stepping(ranks=1)
    watchdog.ended(0)
    assert watchdog.silent_for(1e6) is None


def starting(*, timeout_s: float | None = None, stopped: bool = False) -> Watchdog:
    """Two ranks that last did something at 100, and rank 1 was perhaps stopped then."""
    found = Watchdog(timeout_s=timeout_s)
    found.start_generation(range(2), 0.0)
    found.observe_activity(0, 100.0, is_stopped=False)
    found.observe_activity(1, 100.0, is_stopped=stopped)
    return found


@pytest.mark.parametrize(
    ("watchdog", "limit_s"),
    [
        pytest.param(starting(), FIRST_STEP_S, id="nobody does anything"),
        pytest.param(starting(timeout_s=5), 50, id="the user's limit, ten times as in all of the start"),
        pytest.param(starting(stopped=True), MIN_LIMIT_S, id="a stopped process"),
        pytest.param(starting(stopped=True, timeout_s=5), 5, id="a stopped process, and the user's limit"),
    ],
)
def test_before_the_first_step_whoever_does_nothing_is_silent(watchdog: Watchdog, limit_s: float) -> None:
    assert watchdog.due == (100 + limit_s - 2, 100 + limit_s)
    watchdog.observe_activity(1, 200.0, is_stopped=False)
    limit_s = 50 if watchdog.timeout_s else FIRST_STEP_S
    assert watchdog.due == (200 + limit_s - 2, 200 + limit_s), "it works, or goes on"


def test_ranks_of_which_the_system_tells_nothing_are_not_judged_before_the_first_step() -> None:
    watchdog = Watchdog()
    for _generation in range(2):
        watchdog.start_generation(range(2), 0.0)
        known = []
        for rank in range(2):
            watchdog.observe_activity(rank, 0.0, is_stopped=False)
            known.append(watchdog.due is not None)
        assert known == [False, True]


def test_once_there_are_steps_only_they_count() -> None:
    """A rank in an endless loop uses CPU time too."""
    watchdog = stepping()
    watchdog.observe_activity(1, 40.0, is_stopped=False)
    assert watchdog.silent_for(20 + MIN_LIMIT_S) == MIN_LIMIT_S


def asleep(probe: Probe, asleep_s: float = 400.0) -> Probe:
    return replace(probe, asleep_s=asleep_s)


STOPPED = Probe(frame="", is_stopped=True)
ELSEWHERE = Probe(frame="/app/train.py:9 in <module>")


@pytest.mark.parametrize(
    ("probes", "named"),
    [
        pytest.param({0: WAITING, 1: STOPPED, 2: ELSEWHERE}, [1], id="who is stopped, and nobody else"),
        pytest.param({0: WAITING, 1: asleep(ELSEWHERE)}, [1], id="who sleeps while somebody waits for it"),
        pytest.param({0: WAITING, 1: asleep(ELSEWHERE, 200)}, [], id="who wakes up now and then is at work"),
        pytest.param({0: WAITING, 1: asleep(ELSEWHERE), 2: ELSEWHERE}, [], id="one is enough"),
        pytest.param({0: WAITING, 1: LOADING}, [1], id="who waits for its own processes"),
        pytest.param({0: LOADING}, [0], id="also where it is alone"),
        pytest.param({0: asleep(ELSEWHERE)}, [], id="a server may sleep while nobody wants anything"),
        pytest.param({0: WAITING, 1: WAITING}, [0, 1], id="all wait for all"),
        pytest.param({0: WAITING, 1: asleep(Probe())}, [1], id="who does not answer"),
        pytest.param({0: WAITING, 1: Probe()}, [], id="who does not answer, and nothing else is known of it"),
    ],
)  # fmt: skip
def test_culprits_before_the_first_step(probes: dict[int, Probe], named: list[int]) -> None:
    assert culprits_before_first_step(probes, silent_s=600) == named


@pytest.mark.parametrize(
    ("probes", "named"),
    [
        pytest.param({0: WAITING, 1: LOADING, 2: WAITING}, [1], id="who is elsewhere did not come"),
        pytest.param({0: WAITING, 1: Probe()}, [1], id="who does not answer"),
        pytest.param({0: Probe(frame=WAITING.frame, is_stopped=True), 1: WAITING}, [0], id="who is stopped"),
        pytest.param({0: WAITING, 1: WAITING}, [0, 1], id="all wait for all"),
        pytest.param({0: LOADING, 1: LOADING, 2: WAITING}, [0, 1], id="two at once"),
    ],
)
def test_culprits(probes: dict[int, Probe], named: list[int]) -> None:
    assert culprits(probes) == named


@pytest.mark.parametrize("place", WAITING_FRAMES)
def test_code_that_waits_for_peers_is_where_it_is_looked_for(place: str) -> None:
    """A module that moves would make whoever waits in it the culprit."""
    assert [folder for folder in sys.path if (Path(folder) / place).exists()]


def test_code_of_ours_that_waits_for_a_collective_is_known_to_wait() -> None:
    """The wait itself is none of Python's: the frame that is seen is ours."""
    package = Path(dtj.__file__).parent
    waiting = [path for path in package.rglob("*.py") if "work.wait()" in path.read_text()]
    assert waiting
    assert {str(path.relative_to(package.parent)) for path in waiting} <= set(WAITING_FRAMES)


def test_sentence_says_where_the_rank_is() -> None:
    assert describe_hang(1, LOADING, silence="no step for 31 s", deadlock=False) == (
        "no step for 31 s: rank 1 is in /lib/torch/utils/data/dataloader.py:1 in _try_get_data"
    )
    assert "waits for its peers, as do all other ranks" in describe_hang(
        0, WAITING, silence="none", deadlock=True
    )


def test_innermost_frame_is_that_of_the_main_thread() -> None:
    stacks = (
        'Thread 0x01 (most recent call first):\n  File "/lib/threading.py", line 5 in run\n\n'
        'Current thread 0x02 (most recent call first):\n  File "/app/train.py", line 7 in loss\n'
        '  File "/app/train.py", line 9 in <module>\n'
    )
    assert innermost(stacks) == "/app/train.py:7 in loss"
    assert innermost("") == ""


def test_innermost_frame_is_not_where_python_itself_waits() -> None:
    loading = (
        'Thread 0x02 (most recent call first):\n  File "/lib/python3/selectors.py", line 415 in select\n'
        '  File "/lib/python3/multiprocessing/connection.py", line 930 in wait\n'
        '  File "/lib/torch/utils/data/dataloader.py", line 1 in _try_get_data\n'
    )
    assert innermost(loading) == LOADING.frame
