"""Which silence is a hang, and what the stacks of a rank say."""

import pytest

from dtj.agent.hang import LIMIT_IN_STEPS, MIN_LIMIT_S, REPORT_DELAY_S, STARTUP_TIMES, Watchdog, innermost

STEP_S = MIN_LIMIT_S  # long steps, so that the limit follows from them
USUAL = LIMIT_IN_STEPS * STEP_S - REPORT_DELAY_S


def frame(file: str, line: int = 7, function: str = "run") -> str:
    return f'  File "{file}", line {line} in {function}'


def stacks(*threads: list[str]) -> str:
    """Stacks as faulthandler prints them: the main thread last, its innermost frame first."""
    return "\n\n".join("\n".join(["Thread 0x1 (most recent call first):", *frames]) for frames in threads)


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        pytest.param(
            [
                [frame("/app/other.py")],
                [frame("/app/train.py", 9, "load"), frame("/app/train.py", 20, "main")],
            ],
            "/app/train.py:9 in load",
            id="innermost frame of the main thread",
        ),
        pytest.param(
            [[frame("/app/other.py")], [frame("/lib/threading.py"), frame("/app/train.py", 9, "load")]],
            "/app/train.py:9 in load",
            id="the caller of a function that waits",
        ),
        pytest.param(
            [[frame("/lib/queue.py", 3, "get")]], "/lib/queue.py:3 in get", id="only functions that wait"
        ),
        pytest.param(
            [[frame("/app/train.py")], []], "/app/train.py:7 in run", id="main thread without a frame"
        ),
        pytest.param([[]], "", id="no frame at all"),
    ],
)
def test_stacks_name_one_place(threads: list[list[str]], expected: str) -> None:
    assert innermost(stacks(*threads)) == expected


def stepping(steps: int, *, ranks: int = 1) -> Watchdog:
    """A generation whose ranks complete a step every STEP_S, from 0 on."""
    watchdog = Watchdog()
    watchdog.start_generation(range(ranks), 0.0)
    for step in range(steps + 1):
        for rank in range(ranks):
            watchdog.observe(rank, step, step * STEP_S, paused=False)
    return watchdog


def test_limit_is_several_usual_steps_and_longer_during_the_first_three() -> None:
    startup = STARTUP_TIMES * LIMIT_IN_STEPS * STEP_S - REPORT_DELAY_S
    assert stepping(2).limit(0) == startup
    assert stepping(3).limit(0) == USUAL


def test_declared_pause_is_not_a_usual_step() -> None:
    watchdog = stepping(3)
    for step in range(4, 10):
        watchdog.observe(0, None, step * 1000.0, paused=True)
        watchdog.observe(0, step, step * 1000.0 + 900.0, paused=False)
    assert watchdog.limit(0) == USUAL


def test_rank_that_exited_is_not_expected_to_be_active() -> None:
    watchdog = stepping(3, ranks=2)
    watchdog.observe(1, None, 3 * STEP_S, paused=True)
    before = watchdog.due
    watchdog.ended(1)
    assert watchdog.ranks == {0}
    assert (before, watchdog.due is None) == (None, False)
    watchdog.ended(1)  # of an agent that reports it again
    watchdog.ended(0)
    assert watchdog.due is None
