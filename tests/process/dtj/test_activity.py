"""Activity of ranks without a step, as real processes: active ranks are reported, waiting ones are not."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dtj.agent.rank import own_stacks
from dtj.agent.rank.process import RankProcess
from dtj.agent.rank.process_usage import Process, ProcessTable, process_of, processes, usage_of
from dtj.agent.replica import activity
from dtj.agent.replica.activity import ActivityReader, did_something
from dtj.agent.wire.signs import Activity
from dtj.telemetry.heartbeat import SharedHeartbeat
from tests.process.dtj.conftest import wait_for

# Acts once for each SIGUSR1, which needs neither input nor output.
PROGRAM = """
import os, runpy, signal, subprocess, sys, time

def compute():
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass

acts = {
    "compute": compute,
    "read": lambda: os.read(os.open("/dev/zero", os.O_RDONLY), 2_000_000),
    "start": lambda: subprocess.Popen(["sleep", "600"], start_new_session=True),
    "rename": lambda: open("/proc/self/comm", "wb").write(bytes([255]) + b") S 1"),
    "nothing": lambda: None,
}
runpy.run_path(sys.argv[3])["answer"](int(sys.argv[2]))
signal.signal(signal.SIGUSR1, lambda *_: acts[sys.argv[1]]())
print(flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> ActivityReader:
    """Polls on every tick."""
    monkeypatch.setattr(activity, "_POLL_S", 0.0)
    return ActivityReader()


@pytest.fixture
def begin() -> Iterator[Callable[[str], RankProcess]]:
    """begin("read") starts a rank that reads whenever it gets SIGUSR1."""
    with contextlib.ExitStack() as stack:

        def start(act: str) -> RankProcess:
            read, write = os.pipe()
            argv = [sys.executable, "-S", "-c", PROGRAM, act, str(write), own_stacks.__file__]
            popen = subprocess.Popen(argv, stdout=subprocess.PIPE, process_group=0, pass_fds=(write,))
            stack.enter_context(popen)
            stack.callback(popen.kill)
            stack.callback(end, popen.pid)
            assert popen.stdout
            popen.stdout.readline()
            wait_for(lambda: state(popen.pid) == "S", "the rank to wait")
            os.set_blocking(read, False)
            for fd in (read, write):
                stack.callback(os.close, fd)
            return RankProcess(
                rank=3, pid=popen.pid, streams={}, reports=-1, orders=write, stacks=read,
                heartbeat=SharedHeartbeat(), generation=2,
            )  # fmt: skip

        yield start


def state(pid: int) -> str:
    process = process_of(pid)
    return process.state if process else ""


def is_asleep(rank: RankProcess) -> bool:
    return all(state(pid) == "S" for pid in tree(rank.pid))


def tree(pid: int) -> list[int]:
    usage = usage_of(pid, processes())
    return sorted(usage.pids) if usage else []


def end(root: int) -> None:
    for pid in tree(root):
        os.kill(pid, signal.SIGKILL)


def test_rank_is_reported_once_and_then_whenever_it_was_active(
    reader: ActivityReader, begin: Callable[[str], RankProcess]
) -> None:
    for act in ("compute", "read", "start"):
        rank = begin(act)
        assert reader.tick([rank]) == {3: Activity(2, False)}
        for _ in range(2):
            assert [reader.tick([rank]) for _ in range(3)] == [{}] * 3, act
            os.kill(rank.pid, signal.SIGUSR1)
            wait_for(lambda: reader.tick([rank]) == {3: Activity(2, False)}, f"the rank to {act}")  # noqa: B023
            # Its child process too, which first reads its libraries.
            wait_for(lambda: is_asleep(rank) and not reader.tick([rank]), "the rank to rest")  # noqa: B023


def test_burst_of_work_after_minutes_of_quiet_is_activity(
    reader: ActivityReader, begin: Callable[[str], RankProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = begin("compute")
    reader.tick([rank])
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 580)
    monkeypatch.setattr(activity, "time", clock)
    assert reader.tick([rank]) == {}
    os.kill(rank.pid, signal.SIGUSR1)
    wait_for(lambda: reader.tick([rank]) == {3: Activity(2, False)}, "half a second of work to be seen")


def test_rank_that_only_woke_up_is_not_active_but_not_asleep_either(
    reader: ActivityReader, begin: Callable[[str], RankProcess]
) -> None:
    rank = begin("nothing")
    assert reader.asleep_s(rank) == 0.0, "unknown"
    reader.tick([rank])
    wait_for(lambda: reader.tick([rank]) == {} and reader.asleep_s(rank) > 0.2, "the rank to sleep")
    woken_at = time.monotonic()
    os.kill(rank.pid, signal.SIGUSR1)

    def was_seen_awake() -> bool:
        assert reader.tick([rank]) == {}
        return time.monotonic() - reader.asleep_s(rank) > woken_at

    wait_for(was_seen_awake, "the rank to be seen awake")


def test_rank_that_is_stopped_and_continued_is_reported_both_times(
    reader: ActivityReader, begin: Callable[[str], RankProcess]
) -> None:
    rank = begin("nothing")
    reader.tick([rank])
    for number, is_stopped in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
        os.kill(rank.pid, number)
        wait_for(lambda: reader.tick([rank]) == {3: Activity(2, is_stopped)}, "the change")  # noqa: B023
        assert reader.tick([rank]) == {}


def test_writing_its_stacks_is_not_activity_of_a_rank(
    reader: ActivityReader, begin: Callable[[str], RankProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = begin("read")
    reader.tick([rank])
    wait_for(lambda: reader.tick([rank]) == {} and reader.asleep_s(rank) > 0.2, "the rank to sleep")
    monkeypatch.setattr(activity, "_STACKS_S", 1e6)
    rank.request_stacks()
    assert reader.tick([rank]) == {}, "it may still be writing"
    wait_for(lambda: rank.stacks_written() > 0, "it to write")
    wait_for(lambda: state(rank.pid) == "S", "the rank to rest")
    monkeypatch.setattr(activity, "_STACKS_S", 0.0)
    assert reader.tick([rank]) == {}
    assert reader.asleep_s(rank) > 0.2
    os.kill(rank.pid, signal.SIGUSR1)
    wait_for(lambda: reader.tick([rank]), "its own activity")


def test_client_that_asks_for_the_stacks_all_the_time_does_not_hide_activity(
    reader: ActivityReader, begin: Callable[[str], RankProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "_LONGEST_WAIT_S", 0.0)
    rank = begin("compute")

    def tick() -> dict[int, Activity]:
        written = rank.stacks_written()
        rank.request_stacks()
        wait_for(lambda: rank.stacks_written() > written and state(rank.pid) == "S", "the stacks")
        return reader.tick([rank])

    assert tick() == {3: Activity(2, False)}
    assert [tick() for _ in range(5)] == [{}] * 5
    os.kill(rank.pid, signal.SIGUSR1)
    wait_for(lambda: tick() == {3: Activity(2, False)}, "its activity")


def test_ranks_with_steps_or_with_unknown_usage_are_left_out(
    reader: ActivityReader, begin: Callable[[str], RankProcess]
) -> None:
    rank = begin("nothing")
    reader.tick([rank])
    reader.forget(rank)
    assert reader.tick([rank]) == {3: Activity(2, False)}, "a new generation has not heard of it yet"
    rank.heartbeat.stepped(1)
    assert reader.tick([rank]) == {}
    other = begin("nothing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dtj.agent.rank.process_usage._PROC", Path("/nonexistent"))
        assert (reader.tick([other]), reader.asleep_s(other)) == ({}, 0.0)


def test_process_may_have_any_name(begin: Callable[[str], RankProcess]) -> None:
    """The name is in the same line as the numbers, and may contain any bytes."""
    rank = begin("rename")
    os.kill(rank.pid, signal.SIGUSR1)
    comm = Path(f"/proc/{rank.pid}/comm")
    wait_for(lambda: comm.read_bytes() == b"\xff) S 1\n", "its new name")
    wait_for(lambda: state(rank.pid) == "S", "the rank to rest")
    assert tree(rank.pid) == [rank.pid]
    assert processes().known[rank.pid].parent == os.getpid()


def test_processes_started_by_a_rank_belong_to_it(begin: Callable[[str], RankProcess]) -> None:
    rank = begin("start")
    os.kill(rank.pid, signal.SIGUSR1)
    wait_for(lambda: len(tree(rank.pid)) == 2, "the child in a session of its own")
    (child,) = set(tree(rank.pid)) - {rank.pid}
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: tree(rank.pid) == [rank.pid], "its exit, although it is not reaped")


def test_rank_whose_processes_exit_while_they_are_read_is_active(
    begin: Callable[[str], RankProcess],
) -> None:
    """A build may start processes faster than they can be read; its rank is active all the same."""
    rank = begin("nothing")
    table = processes()
    before = usage_of(rank.pid, table)
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    child = Process(parent=rank.pid, group=rank.pid, state="R", cpu_s=0.0)
    table = ProcessTable({**table.known, ended.pid: child})
    now = usage_of(rank.pid, table)

    assert before
    assert now
    assert did_something(before, now, elapsed_s=600)
    assert now.wakeups >= before.wakeups
    assert usage_of(ended.pid, table) is None, "a rank that has exited has no usage"
