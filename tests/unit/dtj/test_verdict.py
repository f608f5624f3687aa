"""Which ranks keep the others waiting, and whether they are at work: decided by stacks and usage alone."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import dtj
from dtj.agent.coordinator.watch.verdict import (
    describe,
    describe_all,
    judge,
    judge_before_first_step,
)
from dtj.agent.rank.process_usage import Usage
from dtj.agent.replica.looks import work_between
from dtj.agent.wire.checked import checked
from dtj.agent.wire.link import encode
from dtj.agent.wire.probe import POLLS, USES_CPU, USES_CPU_AT_TIMES, WAITING_FRAMES, Place, Probe
from tests.support.work import lines_executed


def at(frame: str, does: str = "", *, moved: bool = False) -> Probe:
    return Probe(place=Place(frame), does=does, moved=moved, responds=True)


WAITING = at("/lib/torch/autograd/graph.py:865 in _engine_run_backward")
LOADING = at("/lib/torch/utils/data/dataloader.py:1 in _try_get_data", POLLS)
ITEM = at("/app/train.py:88 in main", USES_CPU)  # the wait for an accelerator keeps a CPU busy
ELSEWHERE = at("/app/train.py:9 in <module>")
LOOPS = replace(ELSEWHERE, does=USES_CPU)
EVALUATES = at("/app/train.py:33 in evaluate", USES_CPU, moved=True)
COMPILED = at(f"/tmp/torchinductor_root/qx/c{'qxt' * 17}.py:139 in call")
STOPPED = Probe(responds=True, is_stopped=True)
SILENT = Probe()
UNKNOWN = Probe(responds=True)  # too many threads


def with_nccl(probe: Probe, *counts: tuple[int, int]) -> Probe:
    """counts: collectives begun and done, for each group."""
    return replace(probe, collectives={str(number): each for number, each in enumerate(counts)})


def many(*odd: Probe, size: int = 128, crowd: Probe = WAITING) -> dict[int, Probe]:
    """As many ranks, of which the last are odd."""
    return dict(enumerate([*[crowd] * (size - len(odd)), *odd]))


@pytest.mark.parametrize(
    ("probes", "culprits"),
    [
        pytest.param({0: WAITING, 1: LOADING, 2: WAITING}, [1], id="elsewhere than the waiting ranks"),
        pytest.param({0: WAITING, 1: SILENT}, [1], id="does not respond"),
        pytest.param({0: replace(WAITING, is_stopped=True), 1: WAITING}, [0], id="stopped"),
        pytest.param({0: WAITING, 1: STOPPED, 2: EVALUATES}, [1], id="only the stopped rank"),
        pytest.param({0: LOADING, 1: LOADING, 2: WAITING}, [0, 1], id="two at once"),
        pytest.param({0: WAITING, 1: UNKNOWN, 2: ELSEWHERE}, [2], id="an unknown place is no reason"),
        pytest.param({0: ITEM, 1: ITEM, 2: ITEM, 3: LOADING}, [3], id="on accelerators: not the majority"),
        pytest.param({0: ITEM, 1: ITEM, 2: LOADING}, [2], id="two of three are a majority"),
        pytest.param(
            {0: ITEM, 1: ITEM, 2: WAITING, 3: ELSEWHERE, 4: ITEM}, [3], id="nor one in a collective"
        ),
        pytest.param(many(ELSEWHERE, crowd=ITEM), [127], id="one of 128 on accelerators"),
        pytest.param(many(ELSEWHERE, LOOPS), [126, 127], id="two of 128 on CPUs"),
        pytest.param(
            {0: with_nccl(ITEM, (9, 8)), 1: with_nccl(ELSEWHERE, (8, 8))},
            [1],
            id="has not begun what NCCL waits for",
        ),
        pytest.param(
            {0: with_nccl(ITEM, (9, 8), (3, 3)), 1: with_nccl(LOOPS, (8, 8), (3, 3))},
            [1],
            id="in one of two groups",
        ),
        pytest.param(
            many(with_nccl(LOOPS, (8, 8)), crowd=with_nccl(EVALUATES, (9, 8))),
            [127],
            id="of 128, and none stands still",
        ),
        pytest.param({0: ELSEWHERE}, [0], id="a single rank"),
        pytest.param({0: COMPILED, 1: ELSEWHERE}, [1], id="not one that waits in compiled code"),
        pytest.param(
            {0: WAITING, 1: replace(COMPILED, does=USES_CPU)}, [1], id="but one that computes there"
        ),
    ],
)
def test_culprits(probes: dict[int, Probe], culprits: list[int]) -> None:
    verdict = judge(probes)
    assert (verdict.culprits, verdict.is_shared) == (culprits, False)


@pytest.mark.parametrize(
    "probes",
    [
        pytest.param({0: WAITING, 1: WAITING}, id="all wait for each other"),
        pytest.param({0: WAITING, 1: UNKNOWN}, id="no rank is known to be elsewhere"),
        pytest.param({0: at("/a.py:1 in f"), 1: at("/a.py:1 in f")}, id="all stand alike"),
        pytest.param(
            {0: at("/a.py:1 in f"), 1: at("/b.py:1 in f")}, id="two ranks, and neither is known to wait"
        ),
        pytest.param({0: LOADING, 1: LOADING, 2: LOADING}, id="all wait for their samples"),
    ],
)
def test_no_rank_is_to_blame_if_none_stands_out(probes: dict[int, Probe]) -> None:
    verdict = judge(probes)
    assert (verdict.culprits, verdict.is_shared, verdict.working) == (list(probes), True, None)


@pytest.mark.parametrize(
    "probes",
    [
        pytest.param(
            {0: with_nccl(LOOPS, (9, 8)), 1: with_nccl(ITEM, (8, 7))},
            id="both wait for NCCL, one a collective later",
        ),
        pytest.param(
            {0: with_nccl(LOOPS, (9, 9)), 1: with_nccl(ITEM, (9, 9))}, id="both have done all that they began"
        ),
    ],
)
def test_no_rank_is_to_blame_if_all_wait_for_their_gpus(probes: dict[int, Probe]) -> None:
    """An endless kernel, for instance: on which GPU it runs is not known."""
    verdict = judge(probes)
    assert (verdict.culprits, verdict.is_shared, verdict.patience) == ([0, 1], True, 1 / 3)


@pytest.mark.parametrize(
    ("probes", "expected"),
    [
        pytest.param({0: EVALUATES}, (0, 1.0), id="its stack changes"),
        pytest.param({0: WAITING, 1: EVALUATES, 2: LOOPS}, (1, 1.0), id="of two, the one with more time"),
        pytest.param(
            {0: WAITING, 1: LOOPS}, (1, 1 / 3), id="in one function: an endless loop, or one long call"
        ),
        pytest.param(
            {0: WAITING, 1: at("/a.py:1 in f", "reads or writes")}, (1, 1.0), id="a save or a download"
        ),
        pytest.param({0: WAITING, 1: at("/a.py:1 in f", POLLS)}, (1, 1.0), id="polls for something outside"),
        pytest.param(
            {0: WAITING, 1: replace(LOADING, does=USES_CPU)}, (1, 1 / 3), id="its workers compute samples"
        ),
        pytest.param(
            {0: WAITING, 1: replace(LOADING, does=USES_CPU_AT_TIMES)},
            (1, 1 / 3),
            id="it looks from time to time whether they have one",
        ),
        pytest.param(
            {0: WAITING, 1: at("/a.py:1 in f", USES_CPU_AT_TIMES)},
            (1, 1.0),
            id="an endless loop does not sleep",
        ),
        pytest.param({0: WAITING, 1: LOADING}, (None, 0.0), id="its workers do nothing"),
        pytest.param({0: WAITING, 1: ELSEWHERE}, (None, 0.0), id="asleep before a collective"),
        pytest.param(
            many(ELSEWHERE, crowd=ITEM), (None, 0.0), id="the CPU of a waiting majority does not count"
        ),
        pytest.param(many(crowd=LOOPS), (0, 1 / 3), id="all evaluate in one line"),
        pytest.param(many(crowd=EVALUATES), (0, 1.0), id="all evaluate"),
        pytest.param(many(crowd=replace(WAITING, does=USES_CPU)), (None, 0.0), id="a collective is not work"),
        pytest.param(
            {0: WAITING, 1: replace(WAITING, does=USES_CPU)},
            (1, 1 / 3),
            id="computes in the backward pass in which the others wait",
        ),
        pytest.param(
            {0: WAITING, 1: replace(WAITING, does=USES_CPU_AT_TIMES)},
            (None, 0.0),
            id="its threads work, but it waits",
        ),
    ],
)
def test_rank_at_work_gets_more_time(probes: dict[int, Probe], expected: tuple[int | None, float]) -> None:
    verdict = judge(probes)
    assert (verdict.working, verdict.patience) == expected


def asleep(probe: Probe, asleep_s: float = 400.0) -> Probe:
    return replace(probe, asleep_s=asleep_s)


@pytest.mark.parametrize(
    ("probes", "named"),
    [
        pytest.param({0: WAITING, 1: STOPPED, 2: ELSEWHERE}, [1], id="only the stopped rank"),
        pytest.param({0: WAITING, 1: asleep(ELSEWHERE)}, [1], id="asleep while another rank waits for it"),
        pytest.param({0: WAITING, 1: asleep(ELSEWHERE, 200)}, [], id="a rank that wakes up is not stuck"),
        pytest.param({0: WAITING, 1: asleep(ELSEWHERE), 2: ELSEWHERE}, [], id="one such rank is enough"),
        pytest.param(
            {0: WAITING, 1: asleep(replace(ELSEWHERE, does=USES_CPU))}, [], id="starved, but it wants to run"
        ),
        pytest.param({0: WAITING, 1: LOADING}, [1], id="waits for its data workers"),
        pytest.param({0: LOADING}, [0], id="also if it is alone"),
        pytest.param({0: asleep(ELSEWHERE)}, [], id="a server may sleep while there is nothing to do"),
        pytest.param({0: WAITING, 1: WAITING}, [0, 1], id="all wait for each other"),
        pytest.param({0: WAITING, 1: asleep(SILENT)}, [1], id="does not respond"),
        pytest.param({0: WAITING, 1: SILENT}, [], id="does not respond, and may be awake"),
    ],
)
def test_culprits_before_the_first_step(probes: dict[int, Probe], named: list[int]) -> None:
    assert judge_before_first_step(probes, silent_s=600).culprits == named


def test_cost_of_a_verdict_is_proportional_to_the_number_of_ranks() -> None:
    def work(ranks: int) -> int:
        probes = {rank: WAITING if rank % 2 else asleep(ELSEWHERE) for rank in range(ranks)}
        return lines_executed(lambda: judge_before_first_step(probes, silent_s=600))

    assert work(200) < 2.5 * work(100)


@pytest.mark.parametrize("place", WAITING_FRAMES)
def test_modules_that_wait_for_peers_exist(place: str) -> None:
    """If a module moves, ranks that wait in it would be treated as culprits."""
    assert [folder for folder in sys.path if (Path(folder) / place).exists()]


def test_functions_of_torch_that_pass_on_a_call_exist() -> None:
    """Skipped by frames.py; the wait for a collective of tensor parallel is below them."""
    assert Path(torch._ops.__file__).parts[-2:] == ("torch", "_ops.py")
    assert (Path(torch.__file__).parent / "_library" / "autograd.py").exists()
    assert Path(torch.futures.__file__).parts[-3:] == ("torch", "futures", "__init__.py")


def test_our_own_code_that_waits_for_a_collective_is_recognized() -> None:
    """The wait itself has no Python frame, so the innermost frame is ours."""
    package = Path(dtj.__file__).parent
    waiting = [path for path in package.rglob("*.py") if "work.wait(" in path.read_text()]
    assert waiting
    assert {str(path.relative_to(package.parent)) for path in waiting} <= set(WAITING_FRAMES)


def test_messages_say_where_ranks_are() -> None:
    loads = "_try_get_data, where it waits for its data workers"
    loading = f"rank 1 is in /lib/torch/utils/data/dataloader.py:1 in {loads}"
    assert describe(1, LOADING) == loading
    stopped = f"{loading}; its process 77 is stopped (by SIGSTOP or a debugger)"
    assert describe(1, replace(LOADING, stopped=77)) == stopped
    assert describe(1, EVALUATES) == "rank 1 is in /app/train.py:33 in evaluate and uses CPU"
    assert describe(1, STOPPED) == "rank 1 is stopped (by SIGSTOP or a debugger)"
    assert describe(1, SILENT) == "rank 1 does not respond"
    assert "too many threads" in describe(1, UNKNOWN)
    assert describe_all({0: WAITING, 1: WAITING}).startswith(
        "all ranks wait for each other, so no rank is to blame"
    )
    barrier = at("/lib/torch/distributed/distributed_c10d.py:7 in barrier")
    assert describe_all({0: barrier, 1: barrier, 2: WAITING}).endswith(
        "; rank 2 in /lib/torch/autograd/graph.py:865 in _engine_run_backward)"
    )
    mismatch = describe_all({0: barrier, 1: WAITING})
    assert "different collectives" in mismatch
    assert "lost packets look the same" in mismatch, "as in a pipeline, whose stages always differ"
    assert "collectives" not in describe_all({0: barrier, 1: barrier}), "a connection may be cut"
    assert describe_all({0: SILENT, 1: ELSEWHERE}).endswith("rank 1 is in /app/train.py:9 in <module>")
    asked = describe_all({0: WAITING, 1: WAITING}, leaving=[1])
    assert asked.startswith("all ranks wait for each other since the pod of rank 1 was asked to terminate")
    assert "(rank 1 in " in asked


def test_probe_survives_the_way_to_the_coordinator() -> None:
    assert checked(Probe, json.loads(encode(asdict(EVALUATES)))) == EVALUATES


IDLE = Usage(
    pids=frozenset({1, 2}),
    cpu_s=5.0,
    io_bytes=7,
    is_busy=False,
    runnable=frozenset(),
    stopped=frozenset(),
    wakeups=3,
    other_wakeups={2: 10},
)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(IDLE, "", id="nothing"),
        pytest.param(IDLE._replace(cpu_s=5.1), "", id="a library samples metrics in the background"),
        pytest.param(IDLE._replace(cpu_s=5.2), USES_CPU, id="work"),
        pytest.param(IDLE._replace(is_busy=True), "", id="it waits for a disk the second time only"),
        pytest.param(
            IDLE._replace(cpu_s=5.2, wakeups=4), USES_CPU_AT_TIMES, id="an evaluation that sleeps between"
        ),
        pytest.param(IDLE._replace(io_bytes=400_000), "", id="a few log lines"),
        pytest.param(IDLE._replace(io_bytes=600_000), "reads or writes", id="a slow save"),
        pytest.param(IDLE._replace(pids=frozenset({1, 3})), "starts processes", id="a script"),
        pytest.param(IDLE._replace(pids=frozenset({1})), "", id="a process has ended"),
        pytest.param(IDLE._replace(wakeups=4), POLLS, id="it polls"),
        pytest.param(IDLE._replace(other_wakeups={2: 500}), "", id="idle workers poll"),
    ],
)
def test_work_in_five_seconds(now: Usage, expected: str) -> None:
    assert work_between(IDLE, now, elapsed_s=5.0) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param({1}, {1}, USES_CPU, id="the rank"),
        pytest.param({2}, {2}, USES_CPU, id="a compiler for which it waits"),
        pytest.param(set(), {1}, "", id="a poller that was caught while it was awake"),
        pytest.param({1}, {2}, "", id="two pollers"),
    ],
)
def test_rank_whose_processes_get_no_processor_is_at_work(
    before: set[int], after: set[int], expected: str
) -> None:
    first = IDLE._replace(runnable=frozenset(before))
    assert work_between(first, IDLE._replace(runnable=frozenset(after)), elapsed_s=5.0) == expected


def test_save_to_a_slow_disk_is_work() -> None:
    """Of a plain script, which declares none: its ranks are in torch's code, their bytes are written."""
    disk = IDLE._replace(is_busy=True)
    does = work_between(disk, disk, elapsed_s=5.0)
    assert does == "waits for a disk"
    saves = at("/lib/torch/distributed/checkpoint/filesystem.py:438 in _write_files_from_queue", does)
    waits = at("/lib/torch/distributed/distributed_c10d.py:757 in gather")
    assert judge({0: saves, 1: waits}).working == 0
    assert judge({0: saves, 1: saves}).patience == 1.0


def test_loop_that_other_threads_interrupt_is_not_one_that_sleeps() -> None:
    """A thread that gives way to other threads of Python wakes up as often as one that sleeps."""
    first = IDLE._replace(runnable=frozenset({1}))
    assert work_between(first, first._replace(cpu_s=9.9, wakeups=900), elapsed_s=5.0) == USES_CPU
