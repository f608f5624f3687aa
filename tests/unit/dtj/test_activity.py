"""How much a rank must have done to count as active."""

import pytest

from dtj.agent.rank.process_usage import Usage
from dtj.agent.replica.activity import did_something

IDLE = Usage(
    pids=frozenset(range(1, 10)),
    cpu_s=5.0,
    io_bytes=7,
    is_busy=False,
    runnable=frozenset(),
    stopped=frozenset(),
    wakeups=10,
    other_wakeups=dict.fromkeys(range(2, 10), 10),
)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(IDLE, False, id="nothing"),
        pytest.param(IDLE._replace(wakeups=2000), False, id="woken"),
        pytest.param(IDLE._replace(cpu_s=5 + 10 * 8 * 0.0025), False, id="eight groups of gloo that wait"),
        pytest.param(IDLE._replace(cpu_s=5.25), True, id="work"),
        pytest.param(IDLE._replace(io_bytes=7 + 77_580), False, id="wandb"),
        pytest.param(IDLE._replace(io_bytes=7 + 529_534), False, id="a thread that reads /proc each second"),
        pytest.param(IDLE._replace(io_bytes=7 + 2_000_000), True, id="a download"),
        pytest.param(IDLE._replace(pids=frozenset({1, 3})), True, id="another process"),
        pytest.param(IDLE._replace(is_busy=True), True, id="a slow disk, or a debugger"),
        pytest.param(
            IDLE._replace(other_wakeups=dict.fromkeys(range(2, 10), 13)), False, id="eight workers that wait"
        ),
        pytest.param(IDLE._replace(other_wakeups={**IDLE.other_wakeups, 5: 31}), True, id="one busy worker"),
    ],
)
@pytest.mark.parametrize("elapsed_s", [2, 10])
def test_did_something_in_a_window(now: Usage, elapsed_s: float, expected: bool) -> None:
    assert did_something(IDLE, now, elapsed_s=elapsed_s) is expected
