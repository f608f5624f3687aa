"""Stacks of ranks: one request at a time, read a moment later; test_hang.py uses real ranks."""

import fcntl
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import cast

import pytest

from dtj.agent.rank.process import RankProcess
from dtj.agent.replica import stacks
from dtj.agent.replica.frames import place_of
from dtj.agent.replica.stacks import RankStacks, Stacks, as_text
from dtj.agent.wire.probe import NOWHERE
from dtj.telemetry import heartbeat
from dtj.telemetry.heartbeat import SharedHeartbeat
from tests.process.dtj.conftest import wait_for

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
        heartbeat=SharedHeartbeat(), generation=1, as_json=False,
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


@pytest.fixture
def rank() -> Iterator[RankProcess]:
    """A forked rank with many threads, which shows signs of life all the time."""
    found = RankProcess.fork(
        wait_in_many_threads, env=dict(ENV), generation=1, threads=1, as_json=False, slots=(), inherited=[]
    )
    wait_for(lambda: found.heartbeat.signs, "the threads")
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


def test_rank_continues_if_the_pipe_is_full_and_its_place_is_unknown(rank: RankProcess) -> None:
    fcntl.fcntl(rank.stacks, fcntl.F_SETPIPE_SZ, 64 * 1024)
    rank.request_stacks()
    wait_for(lambda: rank.stacks_written() > 60 * 1024, "a full pipe")
    signs = rank.heartbeat.signs
    wait_for(lambda: rank.heartbeat.signs > signs, "the rank to continue")
    found = RankStacks(rank)
    assert (found.responds, found.place) == (True, NOWHERE)
