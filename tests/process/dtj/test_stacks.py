"""Stacks of ranks: one request at a time, read a moment later; test_hang.py uses real ranks."""

import os
import subprocess
from typing import cast

import pytest

from dtj.agent import stacks
from dtj.agent.rank_process import RankProcess
from dtj.agent.stacks import RankStacks, Stacks, as_text
from dtj.telemetry.heartbeat import SharedHeartbeat


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
    assert process.read_stacks()[1] == "new"
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
