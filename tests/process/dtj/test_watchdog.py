"""Which silence is a hang, and which rank causes it: decided by times, steps and stacks alone."""

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
    """Ranks that have completed some steps, the last one at `steps * step_s`."""
    found = Watchdog(timeout_s=timeout_s)
    found.start_generation(range(ranks), 0.0)
    for step in range(1, steps + 1):
        for rank in range(ranks):
            found.observe(rank, step, step * step_s, paused=False)
    return found


@pytest.mark.parametrize(
    ("watchdog", "now", "expected"),
    [
        pytest.param(stepping(), 20 + MIN_LIMIT_S - 1, None, id="short steps: half a minute is not a hang"),
        pytest.param(stepping(), 20 + MIN_LIMIT_S + 1, MIN_LIMIT_S + 1, id="short steps: more is a hang"),
        pytest.param(
            stepping(step_s=10), 200 + 49, None, id="long steps: five times the usual is not a hang"
        ),
        pytest.param(stepping(step_s=10), 200 + 51, 51, id="long steps: more is a hang"),
        pytest.param(stepping(steps=3), 3 + 299, None, id="the first steps may take ten times as long"),
        pytest.param(stepping(steps=3), 3 + 301, 301, id="but no longer"),
        pytest.param(stepping(timeout_s=5), 20 + 6, 6, id="the user's limit"),
        pytest.param(stepping(steps=0), 1e6, None, id="before the first step silence alone means nothing"),
    ],
)
def test_silent_for(watchdog: Watchdog, now: float, expected: float | None) -> None:
    assert watchdog.silent_for(now) == expected


def test_pause_of_one_rank_excuses_all_and_silence_counts_from_its_end() -> None:
    watchdog = stepping()
    watchdog.observe(1, 20, 25.0, paused=True)
    assert watchdog.silent_for(1e6) is None
    watchdog.observe(1, 20, 1000.0, paused=False)
    assert watchdog.silent_for(1000.0 + MIN_LIMIT_S - 1) is None  # rank 0 has waited, and may continue
    assert watchdog.limit(0) == MIN_LIMIT_S - REPORT_DELAY_S  # the pause is not counted as a step


def test_usual_step_time_is_measured_from_steps_alone() -> None:
    """Not from declared pauses, nor from a generation's first step, which includes the rendezvous."""
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


def test_heartbeat_after_many_steps_is_not_a_long_step() -> None:
    watchdog = Watchdog()
    watchdog.start_generation(range(1), 0.0)
    for step in range(0, 200, 20):
        watchdog.observe(0, step, float(step), paused=False)
    assert watchdog.limit(0) == MIN_LIMIT_S - REPORT_DELAY_S


def test_others_may_wait_for_a_rank_that_is_starting() -> None:
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
    """Otherwise ranks that wait for it in a collective would go unnoticed."""
    watchdog = stepping()
    watchdog.observe(1, 20, 25.0, paused=True)
    watchdog.ended(1)
    assert watchdog.silent_for(20 + 2 * MIN_LIMIT_S) == 2 * MIN_LIMIT_S


def test_ranks_are_probed_before_the_limit_however_short_it_is() -> None:
    assert stepping(timeout_s=1).due == (20.5, 21)
    assert stepping(timeout_s=100).due == (20 + 98, 20 + 100)


def test_rank_that_is_done_is_not_expected_to_step() -> None:
    watchdog = stepping(ranks=1)
    watchdog.ended(0)
    assert watchdog.silent_for(1e6) is None


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
        pytest.param(starting(stopped=True, timeout_s=5), 5, id="a stopped process, and the user's limit"),
    ],
)
def test_before_the_first_step_a_rank_without_activity_is_silent(watchdog: Watchdog, limit_s: float) -> None:
    assert watchdog.due == (100 + limit_s - 2, 100 + limit_s)
    watchdog.observe_activity(1, 200.0, is_stopped=False)
    limit_s = 50 if watchdog.timeout_s else FIRST_STEP_S
    assert watchdog.due == (200 + limit_s - 2, 200 + limit_s), "it is active, or continued"


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


def asleep(probe: Probe, asleep_s: float = 400.0) -> Probe:
    return replace(probe, asleep_s=asleep_s)


STOPPED = Probe(frame="", is_stopped=True)
ELSEWHERE = Probe(frame="/app/train.py:9 in <module>")


@pytest.mark.parametrize(
    ("probes", "named"),
    [
        pytest.param({0: WAITING, 1: STOPPED, 2: ELSEWHERE}, [1], id="only the stopped rank"),
        pytest.param({0: WAITING, 1: asleep(ELSEWHERE)}, [1], id="asleep while another rank waits for it"),
        pytest.param({0: WAITING, 1: asleep(ELSEWHERE, 200)}, [], id="a rank that wakes up is not stuck"),
        pytest.param({0: WAITING, 1: asleep(ELSEWHERE), 2: ELSEWHERE}, [], id="one such rank is enough"),
        pytest.param({0: WAITING, 1: LOADING}, [1], id="waits for its data workers"),
        pytest.param({0: LOADING}, [0], id="also if it is alone"),
        pytest.param({0: asleep(ELSEWHERE)}, [], id="a server may sleep while there is nothing to do"),
        pytest.param({0: WAITING, 1: WAITING}, [0, 1], id="all wait for each other"),
        pytest.param({0: WAITING, 1: asleep(Probe())}, [1], id="does not respond"),
        pytest.param({0: WAITING, 1: Probe()}, [], id="does not respond, and may be awake"),
    ],
)  # fmt: skip
def test_culprits_before_the_first_step(probes: dict[int, Probe], named: list[int]) -> None:
    assert culprits_before_first_step(probes, silent_s=600) == named


@pytest.mark.parametrize(
    ("probes", "named"),
    [
        pytest.param({0: WAITING, 1: LOADING, 2: WAITING}, [1], id="elsewhere than the waiting ranks"),
        pytest.param({0: WAITING, 1: Probe()}, [1], id="does not respond"),
        pytest.param({0: Probe(frame=WAITING.frame, is_stopped=True), 1: WAITING}, [0], id="stopped"),
        pytest.param({0: WAITING, 1: WAITING}, [0, 1], id="all wait for each other"),
        pytest.param({0: LOADING, 1: LOADING, 2: WAITING}, [0, 1], id="two at once"),
    ],
)
def test_culprits(probes: dict[int, Probe], named: list[int]) -> None:
    assert culprits(probes) == named


@pytest.mark.parametrize("place", WAITING_FRAMES)
def test_modules_that_wait_for_peers_exist(place: str) -> None:
    """If a module moves, ranks that wait in it would be treated as culprits."""
    assert [folder for folder in sys.path if (Path(folder) / place).exists()]


def test_our_own_code_that_waits_for_a_collective_is_recognized() -> None:
    """The wait itself has no Python frame, so the innermost frame is ours."""
    package = Path(dtj.__file__).parent
    waiting = [path for path in package.rglob("*.py") if "work.wait()" in path.read_text()]
    assert waiting
    assert {str(path.relative_to(package.parent)) for path in waiting} <= set(WAITING_FRAMES)


def test_message_says_where_the_rank_is() -> None:
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
