"""Stacks of ranks: one request at a time, read a moment later; test_hang.py uses real ranks."""

import ctypes
import fcntl
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import cast

import pytest

from dtj.agent.rank import own_stacks
from dtj.agent.rank.frames import place_of
from dtj.agent.rank.main import Program
from dtj.agent.rank.process import RankProcess
from dtj.agent.rank.process_usage import Process, process_of
from dtj.agent.replica import stacks
from dtj.agent.replica.activity import ActivityReader
from dtj.agent.replica.looks import Looks
from dtj.agent.replica.stacks import LONGEST_S, RankStacks, Stacks, as_text
from dtj.agent.report.status_server import STACKS_TIMEOUT_S
from dtj.agent.wire.probe import NOWHERE, USES_CPU, Probe
from dtj.telemetry import heartbeat
from dtj.telemetry.heartbeat import SharedHeartbeat
from dtj_client.show.stacks import question
from tests.process.dtj.conftest import wait_for
from tests.support.commands import DEADLINE_S

ENV = {"RANK": "0", "WORLD_SIZE": "1", "NNODES": "1"}


@pytest.fixture
def process() -> RankProcess:
    """A rank that is gone; the test writes its stacks, to `orders`."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    read, write = os.pipe()
    os.set_blocking(read, False)
    return RankProcess(
        rank=3, pid=gone.pid, streams={}, reports=-1, orders=write, stacks=read,
        heartbeat=SharedHeartbeat(), generation=1,
    )  # fmt: skip


def test_stacks_that_arrive_late_do_not_answer_the_next_request(
    process: RankProcess,
) -> None:
    os.write(process.orders, b"old")
    process.request_stacks()
    os.write(process.orders, b"new")
    assert process.read_stacks() == "new"
    assert process.stacks_written() == len("oldnew")
    assert "does not respond" in RankStacks(process).text


class Counted:
    """A rank that counts the requests for its stacks."""

    def __init__(self, process: RankProcess) -> None:
        self._process = process
        self.requests = 0

    def request_stacks(self) -> None:
        self.requests += 1
        self._process.request_stacks()

    def __getattr__(self, name: str) -> object:
        return getattr(self._process, name)


def test_concurrent_requests_get_the_same_answer_once(
    process: RankProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_STACKS_S", 0.0)
    rank, answers, requests = Counted(process), list[str](), Stacks()
    everybody = [cast(RankProcess, rank)]
    for asker in "ab":
        requests.request(everybody, lambda found, asker=asker: answers.append(asker + as_text(found)[:6]))  # type: ignore[misc]
    assert rank.requests == 1
    requests.tick(everybody)
    requests.request(everybody, lambda found: answers.append("c" + as_text(found)[:6]))
    requests.tick(everybody)
    requests.tick(everybody)
    assert answers == ["arank 3", "brank 3", "crank 3"]
    assert requests.deadline is None


@pytest.fixture
def slow() -> Iterator[RankProcess]:
    """A live rank that does nothing when it is asked; the test writes its stacks, to `orders`."""
    before = {number: signal.getsignal(number) for number in (own_stacks.ASK, own_stacks.INSIST)}
    own_stacks.ignore()
    popen = subprocess.Popen(["sleep", "600"])  # inherits that
    for number, handler in before.items():
        signal.signal(number, handler)
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield RankProcess(
        rank=3, pid=popen.pid, streams={}, reports=-1, orders=write, stacks=read,
        heartbeat=SharedHeartbeat(), generation=1,
    )  # fmt: skip
    popen.kill()
    popen.wait()


class Asked:
    """An answer to a request about one rank."""

    def __init__(self, process: RankProcess) -> None:
        self._process, self._stacks = process, Stacks()
        self.found: list[RankStacks] = []
        self._stacks.request([process], self.found.extend)

    def tick(self) -> None:
        wait_for(lambda: time.monotonic() >= (self._stacks.deadline or 0.0), "the time to look again")
        self._stacks.tick([self._process])


def test_rank_that_gets_next_to_no_processor_time_is_waited_for(
    slow: RankProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_STACKS_S", 0.0)
    asked = Asked(slow)
    asked.tick()
    os.write(slow.orders, b"thread 1")
    asked.tick()
    os.write(slow.orders, b"thread 2")
    asked.tick()
    assert asked.found == []
    asked.tick()
    assert [one.text for one in asked.found] == ["thread 1thread 2"]


@pytest.mark.parametrize("is_stopped", [True, False])
def test_rank_that_cannot_answer_is_not_waited_for_any_longer(
    slow: RankProcess, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    monkeypatch.setattr(stacks, "_STACKS_S", 0.0)
    monkeypatch.setattr(stacks, "LONGEST_S", 600.0 if is_stopped else 0.0)
    if is_stopped:
        os.kill(slow.pid, signal.SIGSTOP)
        wait_for(lambda: (state := process_of(slow.pid)) and state.state == "T", "the rank to stop")
    asked = Asked(slow)
    asked.tick()
    assert [(one.responds, one.is_stopped) for one in asked.found] == [(False, is_stopped)]


@pytest.mark.parametrize(("state", "does"), [("R", USES_CPU), ("S", ""), ("D", "")])
def test_rank_that_waits_for_a_processor_is_at_work_although_it_does_not_respond(
    process: RankProcess, monkeypatch: pytest.MonkeyPatch, state: str, does: str
) -> None:
    """Its usage could not be read either, because it began to write just then."""
    monkeypatch.setattr(stacks, "_STACKS_S", 0.0)
    monkeypatch.setattr(stacks, "LONGEST_S", 0.0)
    monkeypatch.setattr(stacks, "process_of", lambda _: Process(parent=1, group=1, state=state, cpu_s=0.0))
    asked, probes = Stacks(), dict[int, Probe]()
    looks = Looks(asked, ActivityReader(), lambda: [process])
    looks.request(0.0, lambda found, _: probes.update(found))
    for tick in (asked.tick, lambda _: looks.tick(), asked.tick):
        tick([process])
    assert (probes[3].does, probes[3].responds) == (does, False)


def test_clients_wait_longer_than_the_agent_waits_for_a_rank() -> None:
    found = re.search(r"timeout=(\d+)", question())
    assert found
    assert LONGEST_S + 5 < STACKS_TIMEOUT_S < int(found[1]) - 5


def test_pod_without_ranks_reports_that_none_is_running() -> None:
    assert as_text([]) == "no rank is running\n"


def wait_in_many_threads() -> None:
    """The stacks of 90 threads that have called 30 functions each are larger than a pipe usually is."""

    def wait(depth: int) -> None:
        if depth:
            wait(depth - 1)
        else:
            ready.wait()
            threading.Event().wait()

    ready = threading.Barrier(91)
    for _ in range(90):
        threading.Thread(target=wait, args=(30,), daemon=True).start()
    ready.wait()
    while True:
        heartbeat.mine.sign()
        time.sleep(0.01)


def fork(program: Program) -> RankProcess:
    """A forked rank that runs this program, which shows a sign of life."""
    found = RankProcess.fork(
        program, env=dict(ENV), generation=1, threads=1, as_json=False, slots=(), inherited=[]
    )
    wait_for(lambda: found.heartbeat.signs, "the program to begin")
    return found


@pytest.fixture
def rank() -> Iterator[RankProcess]:
    """A forked rank with many threads, which shows signs of life all the time."""
    found = fork(wait_in_many_threads)
    yield found
    found.kill()
    os.waitpid(found.pid, 0)


def test_rank_with_many_threads_writes_all_stacks_and_does_not_wait_for_a_reader(
    rank: RankProcess,
) -> None:
    rank.request_stacks()
    wait_for(lambda: rank.stacks_written() > 128 * 1024, "more than a pipe of the usual size holds")
    signs = rank.heartbeat.signs
    wait_for(lambda: rank.heartbeat.signs > signs, "the rank to continue")
    assert place_of(rank.read_stacks()).frame.endswith("in wait_in_many_threads")


def test_rank_continues_if_the_pipe_is_full_and_its_place_is_known(rank: RankProcess) -> None:
    fcntl.fcntl(rank.stacks, fcntl.F_SETPIPE_SZ, 64 * 1024)
    rank.request_stacks()
    wait_for(lambda: rank.stacks_written() > 60 * 1024, "a full pipe")
    signs = rank.heartbeat.signs
    wait_for(lambda: rank.heartbeat.signs > signs, "the rank to continue")
    found = RankStacks(rank)
    assert found.place.frame.endswith("in wait_in_many_threads")


def call_functions_all_the_time() -> None:
    """From C code, as sort, map and abstract classes do."""

    def same(number: int) -> int:
        return number

    while True:
        heartbeat.mine.sign()
        sorted(range(1000), key=same)


def test_asking_for_its_stacks_never_ends_a_rank() -> None:
    """CPython's faulthandler ends such a process at one of 10 to 900 requests."""
    rank = fork(call_functions_all_the_time)
    for _ in range(500):
        rank.request_stacks()
        select.select([rank.stacks], [], [], DEADLINE_S)  # not wait_for: the rank uses a CPU meanwhile
        assert place_of(rank.read_stacks()) != NOWHERE
    rank.kill()
    assert os.waitpid(rank.pid, 0)[1] == signal.SIGKILL


def keep_the_lock() -> None:
    """Of the interpreter, in native code that waits for ever."""
    pause = ctypes.PyDLL(None).pause
    heartbeat.mine.sign()
    pause()


def test_rank_that_keeps_the_interpreters_lock_writes_its_stacks_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stacks, "_STACKS_S", 0.0)
    monkeypatch.setattr(stacks, "_INSIST_S", 0.0)
    rank = fork(keep_the_lock)
    asked = Asked(rank)
    while not asked.found:
        asked.tick()
    assert asked.found[0].place.frame.endswith("in keep_the_lock")
    rank.kill()
    os.waitpid(rank.pid, 0)
