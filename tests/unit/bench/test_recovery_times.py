"""The stages of a recovery, from logs and watches."""

import pytest

from tests.bench.recovery_times import HANG, NODE, POD, RANK, Line, Seen, marks, parse, percentile, stages


def log(*lines: tuple[float, str]) -> list[Line]:
    return [Line(at=at, text=text) for at, text in lines]


BEFORE = (8.0, "[rank 0] began"), (9.0, "[rank 0] joined"), (9.9, "[rank 0] did step 41")
COORDINATOR = log(
    *BEFORE,
    (
        10.25,
        "dtj: generation 2: restarted rank 1; other ranks kept their state (1 of 9 in-place restarts used)",
    ),
    (10.6, "[rank 0] did step 42"),
)
NEWCOMER = log(
    *BEFORE,
    (10.1, "dtj: rank 1 was killed by SIGKILL after step 41 (often the kernel's OOM killer: out of memory)"),
    (10.3, "[rank 1] began"),
    (10.5, "[rank 1] joined"),
    (10.7, "[rank 1] did step 42"),
)


def rounded(found: dict[str, float]) -> dict[str, float]:
    return {stage: round(seconds, 3) for stage, seconds in found.items()}


def test_killed_rank():
    found = marks(RANK, fault=10, victim="b", logs={"a": COORDINATOR, "b": NEWCOMER}, seen=Seen())
    assert found
    assert rounded(stages(10, found)) == {
        "detect": 0.1,
        "decide": 0.15,
        "program begins": 0.05,
        "rendezvous": 0.2,
        "first step": 0.2,
        "all": 0.7,
    }


@pytest.mark.parametrize("kept", range(len(NEWCOMER)))
def test_recovery_is_not_over_before_all_ranks_have_done_a_new_step(kept: int):
    logs = {"a": COORDINATOR, "b": NEWCOMER[:kept]}
    assert marks(RANK, fault=10, victim="b", logs=logs, seen=Seen()) is None


def test_step_that_was_under_way_when_the_rank_died_is_not_the_first_new_one():
    late = [*COORDINATOR[:3], Line(at=10.05, text="[rank 0] did step 42"), *COORDINATOR[3:4]]
    assert marks(RANK, fault=10, victim="b", logs={"a": late, "b": NEWCOMER}, seen=Seen()) is None


def test_hang_is_detected_at_its_first_log_line():
    word = Line(at=10.02, text="dtj: no step for 31 s: the stacks of all ranks follow")
    logs = {"a": [*COORDINATOR[:3], word, *COORDINATOR[3:]], "b": NEWCOMER}
    found = marks(HANG, fault=10, victim="b", logs=logs, seen=Seen())
    assert found
    assert found["detect"] == 10.02


def test_replaced_pod_and_lost_node_are_seen_by_watches():
    logs = {
        "a": log(
            *BEFORE,
            (10.01, "dtj: lost the connection to replica 1; the other replicas wait for it"),
            (10.6, "did step 42"),
        )
    }
    logs["b"] = NEWCOMER[4:]
    seen = Seen(unready=10.02, created=10.03, running=10.2)
    for kind, detected in ((POD, 10.01), (NODE, 10.02)):
        found = marks(kind, fault=10, victim="b", logs=logs, seen=seen)
        assert found
        assert (found["detect"], found["decide"], found["pod runs"]) == (detected, 10.03, 10.2)
    for known in ({"blamed": 10.01}, {"blamed": 10.01, "unready": 10.02}):
        found = marks(NODE, fault=10, victim="b", logs=logs, seen=Seen(created=10.03, running=10.2, **known))
        assert found
        assert found["detect"] == 10.01, "the operator did not wait for Kubernetes"
    assert marks(POD, fault=10, victim="b", logs=logs, seen=Seen(created=10.03)) is None
    found = marks(POD, fault=10, victim="b", logs=logs, seen=Seen(created=10.005, running=10.2))
    assert found
    assert found["detect"] == 10.005, "the operator knew before the agents"


def test_stage_that_ended_before_the_previous_stage_took_no_time():
    spent = stages(10, {"detect": 10.5, "decide": 10.25, "pod runs": 11.0, "first step": 12.0})
    assert spent == {"detect": 0.5, "decide": 0.0, "pod runs": 0.5, "first step": 1.0, "all": 2.0}


def test_timestamps_of_the_container_runtime():
    (line,) = parse("2026-11-21T17:30:22.123456789Z [rank 0] did step 3\nerror from server\n")
    assert line == Line(at=1795282222.123456, text="[rank 0] did step 3")


def test_percentile():
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert percentile([1, 2, 3], 1.0) == 3
    assert percentile([7], 0.99) == 7
