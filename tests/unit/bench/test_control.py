"""The control run of hang detection: its plan, and that it can fail."""

import pytest

from tests.bench import control
from tests.bench.control import Job, alarms, count, named, text
from tests.bench.control_plan import KINDS, PLAIN_KINDS, START_UP, plan

HEALTHY = (
    "dtj: waiting for replica 1\ndtj: pause at step 9: the control run's\n[rank 1] generation 2: a line\n"
)


@pytest.mark.parametrize(("step_s", "nproc"), control.JOBS)
def test_plan_has_all_kinds_within_its_time_and_no_step_slow_enough_to_be_a_hang(step_s: float, nproc: int):
    found = plan(7, seconds=870, step_s=step_s, ranks=2 * nproc)
    assert {event.kind for event in found.values()} == {START_UP, *KINDS}
    total_s = sum(event.seconds for event in found.values()) + step_s * max(found)
    assert 600 < total_s < 1100
    for event in found.values():
        if event.kind == "slow steps":
            assert event.seconds + step_s < max(30, 5 * step_s)


def test_plan_of_plain_scripts_has_events_of_up_to_ten_minutes_in_all_places():
    found = plan(3, seconds=20_000, step_s=0.5, ranks=4, kinds=PLAIN_KINDS).values()
    assert {event.kind for event in found} == {START_UP, *PLAIN_KINDS}
    assert {event.rank for event in found} == {None, 0, 1, 2, 3}
    lengths = [event.seconds for event in found if event.kind in {"evaluation", "checkpoint", "download"}]
    assert min(lengths) >= 40
    assert 300 < max(lengths) <= 600


def test_plan_depends_only_on_the_seed():
    assert plan(1, seconds=500, step_s=1, ranks=2) == plan(1, seconds=500, step_s=1, ranks=2)
    assert plan(1, seconds=500, step_s=1, ranks=2) != plan(2, seconds=500, step_s=1, ranks=2)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("dtj: no step for 31 s: the stacks of all ranks follow", True, id="suspicion"),
        pytest.param("dtj: rank 1 failed: no step for 33 s: rank 1 does not respond", True, id="verdict"),
        pytest.param(
            "dtj: generation 2: restarted all ranks (0 of 9 in-place restarts used)", True, id="generation"
        ),
        pytest.param("dtj: rank 0 was killed by SIGKILL after step 3", True, id="death"),
        pytest.param("dtj: no message from replica 1 for 20 s", True, id="silent agent"),
        pytest.param("[rank 0] the loss is lost", False, id="the output of a rank"),
    ],
)
def test_alarms(line: str, expected: bool):
    assert alarms(HEALTHY) == []
    assert alarms(f"{HEALTHY}{line}\n") == ([line] if expected else [])


def test_named_ranks_are_those_that_hang():
    assert named("dtj: rank 2 failed: no step for 31 s: rank 2 is stopped\ndtj: rank 1 failed: oh") == [2]


def test_events_are_counted_once_and_the_longest_kept():
    job = Job(step_s=1, ranks=2)
    count(
        job,
        [
            [{"kind": "evaluation", "seconds": 2.0}, {"kind": "checkpoint", "seconds": 50.0}],
            [{"kind": "evaluation", "seconds": 40.0}, {"kind": "start", "pid": 1, "generation": 1}],
        ],
    )
    assert job.events["evaluation"] == job.events["checkpoint"] == 1
    assert job.longest_s == {"evaluation": 40.0, "checkpoint": 50.0}


def test_page_reports_false_alarms_and_undetected_hangs():
    job = Job(step_s=1, ranks=2, alarms=["dtj: no step for 31 s: the stacks of all ranks follow"])
    assert "| 1 | not tried yet |" in text([job])
    job.is_over = True
    assert "| 1 | never |" in text([job])
    assert "| 0 | 33.5 |" in text([Job(step_s=1, ranks=2, found_s=33.5)])
