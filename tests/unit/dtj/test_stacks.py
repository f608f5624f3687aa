"""Stacks of ranks: stacks for once, read a moment later, for all who stacks; test_hang.py has real ones."""

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
    """A rank that is gone; what it writes is written by the test, to `orders`."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    read, write = os.pipe()
    os.set_blocking(read, False)
    return RankProcess(
        rank=3, pid=gone.pid, streams={}, reports=-1, orders=write, stacks=read,
        heartbeat=SharedHeartbeat(), generation=1, as_json=False,
    )  # fmt: skip


def test_stacks_that_came_too_late_for_one_request_are_not_the_answer_to_the_next(
    process: RankProcess,
) -> None:
    os.write(process.orders, b"old")
    process.request_stacks()
    os.write(process.orders, b"new")
    assert process.read_stacks()[1] == "new"
    assert "does not respond" in RankStacks(process).text


class Counted:
    """Stands for a rank: how often was it stacks?"""

    def __init__(self, process: RankProcess) -> None:
        self._process = process
        self.requests = 0

    def request_stacks(self) -> None:
        self.requests += 1
        self._process.request_stacks()

    def __getattr__(self, name: str) -> object:
        return getattr(self._process, name)


def test_all_who_ask_meanwhile_get_the_same_answer_and_get_it_once(
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


def test_pod_without_ranks_says_so() -> None:
    assert as_text([]) == "no rank is running\n"
