"""Which rank keeps the others waiting: judged by each rank's own work; none if all are slow."""

import pytest

from dtj.agent.coordinator.watch.straggler import (
    MIN_WINDOW_S,
    WINDOW_STEPS,
    Straggler,
    StragglerDetector,
    slowest,
)
from dtj.telemetry.heartbeat import PAUSE_S, SAVE_S, SharedHeartbeat
from tests.unit.dtj.cost import only_single_items


@pytest.mark.parametrize(
    ("work_s", "expected"),
    [
        pytest.param({0: 0.1, 1: 0.2, 2: 0.1}, (1, 2.0), id="one of three"),
        pytest.param({0: 0.1, 1: 0.2}, (1, 2.0), id="one of two"),
        pytest.param({0: 0.3, 1: 0.3, 2: 0.1, 3: 0.1, 4: 0.1}, (0, 3.0), id="the first of two"),
        pytest.param({0: 0.2, 1: 0.2, 2: 0.2}, None, id="all alike"),
        pytest.param({0: 0.001, 1: 0.004}, None, id="a few milliseconds are noise"),
        pytest.param({0: 9.0}, None, id="a single rank"),
        pytest.param({}, None, id="no rank"),
    ],
)
def test_slowest(work_s: dict[int, float], expected: tuple[int, float] | None) -> None:
    found = slowest(work_s)
    assert (found and (found.rank, round(found.ratio, 6))) == expected


def windows(*rows: dict[int, float], ranks: int = 3) -> list[Straggler | None]:
    """The rank named after each window; a row gives the work of every rank per step."""
    detector, done, now, found = StragglerDetector(), dict.fromkeys(range(ranks), 0.0), 0.0, []
    detector.start_generation(range(ranks), now)
    for rank in done:
        detector.observe(rank, (0, 0.0), now)
    for number, row in enumerate(rows, start=1):
        now += 2 * MIN_WINDOW_S
        for rank in done:
            done[rank] += WINDOW_STEPS * row.get(rank, 0.1)
            detector.observe(rank, (number * WINDOW_STEPS, done[rank]), now)
        found.append(detector.named)
    return found


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        pytest.param([{1: 0.2}, {1: 0.2}, {1: 0.2}], [None, 1, 1], id="named after the second slow window"),
        pytest.param([{1: 0.9}, {}, {1: 0.9}, {}], [None] * 4, id="every other window is not a straggler"),
        pytest.param([{1: 0.2}, {2: 0.2}, {1: 0.2}], [None] * 3, id="two ranks in turn are not stragglers"),
        pytest.param([{1: 0.2}, {1: 0.2}, {1: 0.13}, {1: 0.12}], [None, 1, 1, None], id="until it recovers"),
        pytest.param([{1: 0.2}, {1: 0.2}, {2: 0.4}, {2: 0.4}], [None, 1, None, 2], id="another one"),
        pytest.param([{0: 0.9, 1: 0.9, 2: 0.9}] * 3, [None] * 3, id="all slow down"),
        pytest.param([{1: 0.14}] * 3, [None] * 3, id="a little slower"),
    ],
)
def test_pace(rows: list[dict[int, float]], named: list[int | None]) -> None:
    assert [found and found.rank for found in windows(*rows)] == named


def test_window_is_no_shorter_than_half_a_second() -> None:
    """However many steps it contains: a rank is not at fault for delays of a busy machine."""
    detector = StragglerDetector()
    detector.start_generation(range(2), 0.0)
    for number in range(10):
        for rank in range(2):
            detector.observe(
                rank,
                (WINDOW_STEPS * number, 0.1 * WINDOW_STEPS * number * (1 + rank)),
                MIN_WINDOW_S * number / 10,
            )
    assert detector.named is None


def test_processes_of_a_new_generation_count_from_zero() -> None:
    detector, now = StragglerDetector(), 0.0
    for base in (100, 0):
        detector.start_generation(range(2), now)
        for number in range(3):
            now += 2 * MIN_WINDOW_S
            for rank in range(2):
                work = (base + WINDOW_STEPS * number) * 0.1 * (1 + rank)
                detector.observe(rank, (base + WINDOW_STEPS * number, work), now)
        assert detector.named
        assert detector.named.rank == 1


def test_new_generation_is_judged_from_the_start() -> None:
    detector = StragglerDetector(named=Straggler(rank=1, ratio=2.0))
    detector.start_generation(range(2), 0.0)
    assert detector.named is None
    detector.observe(7, (100, 9.0), 1.0)  # from a rank that no longer exists
    detector.observe(0, (0, 0.0), 2.0)
    assert detector.named is None


def test_no_event_within_a_window_reads_the_state_of_all_ranks() -> None:
    """On accelerators no work is measured, so a window never ends."""
    detector = StragglerDetector()
    detector.start_generation(range(4), 0.0)
    only_single_items(detector)
    for number in range(3 * WINDOW_STEPS):
        for rank in range(3):
            detector.observe(rank, (number, 0.1 * number), 10.0 * number)
        detector.observe(3, (0, 0.0), 10.0 * number)


def test_saves_pauses_and_evaluations_are_detours() -> None:
    heartbeat = SharedHeartbeat()
    heartbeat.optimized(1)
    assert heartbeat.detours == 0
    heartbeat.sign()
    with heartbeat.paused():
        assert heartbeat.detours == 2


def test_pause_says_how_long_it_may_take() -> None:
    heartbeat = SharedHeartbeat()
    found = [heartbeat.pause_s]
    with heartbeat.paused():
        found.append(heartbeat.pause_s)
        with heartbeat.paused(60.0):  # within another one
            found.append(heartbeat.pause_s)
        with heartbeat.paused(2 * PAUSE_S):
            found.append(heartbeat.pause_s)
    found.append(heartbeat.pause_s)
    assert found == [None, PAUSE_S, PAUSE_S, 2 * PAUSE_S, None]


def test_work_after_the_last_step_may_take_any_time() -> None:
    heartbeat = SharedHeartbeat()
    heartbeat.rest()
    with heartbeat.paused(1.0):
        assert heartbeat.pause_s == 0
    heartbeat.wake()
    assert heartbeat.pause_s is None


def test_save_may_take_ten_times_the_longest_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now, found = 0.0, []
    monkeypatch.setattr("dtj.telemetry.heartbeat.time.monotonic", lambda: now)
    heartbeat = SharedHeartbeat()
    for seconds in (10.0, 200.0, 10.0, 10.0):
        with heartbeat.saving():
            found.append(heartbeat.pause_s)
            now += seconds
    assert found == [SAVE_S, SAVE_S, 2000.0, 2000.0]


@pytest.mark.parametrize(("is_done", "pause_s"), [(True, SAVE_S), (False, None)])
def test_exit_functions_get_as_long_as_a_save_unless_the_program_failed(
    *, is_done: bool, pause_s: float | None
) -> None:
    """They may upload; if the program failed, other ranks wait for the end of the process."""
    heartbeat = SharedHeartbeat()
    heartbeat.rest()
    assert heartbeat.pause_s == 0.0
    heartbeat.leave(is_done=is_done)
    assert heartbeat.pause_s == pause_s
