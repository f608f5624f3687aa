"""A rank joins the groups of a generation, or leaves it in bounded time."""

import faulthandler
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dtj import contract
from dtj.agent.child_process import fork_helper
from dtj.agent.coordinator.store import Store
from dtj.ranks import control_pipe, gloo_sockets, process_groups
from dtj.ranks.process_groups import ProcessGroups
from dtj.ranks.stop import StopFlag
from dtj.ranks.world import World
from dtj.telemetry import report_pipe

_JOINED = 5  # an exit code


class Agent:
    """The agent's ends of the pipes of one rank."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, *, generation: int = 1) -> None:
        self._orders = os.pipe()
        self._reports = os.pipe()
        self._store = store
        control_pipe.open_pipe(self._orders[0])
        monkeypatch.setattr(report_pipe, "_pipe", None)
        report_pipe.open_pipe(self._reports[1])
        env = {"GENERATION": generation, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
        for name, value in (env | {"CONNECT_SECONDS": 60}).items():
            monkeypatch.setenv(getattr(contract, name), str(value))

    def order(self, **order: object) -> None:
        os.write(self._orders[1], json.dumps(order).encode() + b"\n")

    def announce(self, number: int, store: Store | None = None) -> None:
        self.order(number=number, addr="127.0.0.1", port=(store or self._store).port, connect_s=60)

    def wait_for(self, kind: str) -> None:
        while not any(kind in report for report in self.reports()):
            pass

    def reports(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in os.read(self._reports[0], 65536).splitlines()]


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    store = Store.start()
    yield Agent(store, monkeypatch)
    store.stop()


def open_groups(rank: int = 0) -> ProcessGroups:
    groups = ProcessGroups(World(rank=rank, size=2), (torch.device("cpu"),), StopFlag(), in_place=True)
    groups.open()
    return groups


def test_rank_that_hangs_while_it_joins_ends_and_shows_where(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No error reaches a rank that hangs in the library, and the other ranks would wait for it."""

    watch, asked = faulthandler.dump_traceback_later, list[dict[str, Any]]()

    def hangs_in_the_library(*_: object, **__: object) -> None:
        watch(0.1, **asked[0])
        threading.Event().wait()

    def rank() -> None:
        sys.stderr = (tmp_path / "stderr").open("w")
        open_groups()

    # The time counts from the hang: a pause of a busy machine before it is none.
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda limit_s, **how: asked.append(how))
    monkeypatch.setattr(process_groups, "open_group", hangs_in_the_library)
    agent.order(go=1)
    _, status = os.waitpid(fork_helper(rank, keep=range(3, 1000)), 0)
    assert os.waitstatus_to_exitcode(status) == 1
    said = (tmp_path / "stderr").read_text()
    assert said.startswith("Timeout (")
    assert "in hangs_in_the_library" in said


def test_rank_that_cannot_break_its_connections_ends_and_shows_why(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For example because it has no file descriptor left. Its main thread may wait in a collective."""

    def fails(**_: object) -> None:
        raise OSError("too many open files")

    def rank() -> None:
        sys.stderr = (tmp_path / "stderr").open("w", buffering=1)
        groups = ProcessGroups(World(size=2), (torch.device("cpu"),), StopFlag(), in_place=True)
        groups._own_ports = frozenset({1})
        groups.open()

    monkeypatch.setattr(gloo_sockets, "shut_down", fails)
    agent.announce(2)
    _, status = os.waitpid(fork_helper(rank, keep=range(3, 1000)), 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert "OSError: too many open files" in (tmp_path / "stderr").read_text()


def test_generation_that_is_replaced_while_a_rank_joins_is_left(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections were not known yet when the news came, so nothing else ends its next collective."""

    groups = ProcessGroups(World(size=2), (torch.device("cpu"),), StopFlag(), in_place=True)
    calls: list[int] = []

    class SecondAttemptError(Exception):
        pass

    def announces_the_next(*_: object, **__: object) -> None:
        calls.append(groups._generation)
        if len(calls) > 1:
            raise SecondAttemptError
        agent.announce(2)
        pipe = groups._control_pipe
        assert pipe
        pipe.wait_newer(1, give_up=lambda: None)
        agent.order(go=2)

    monkeypatch.setattr(process_groups, "open_group", announces_the_next)
    agent.order(go=1)
    with pytest.raises(SecondAttemptError):
        groups.open()
    assert calls == [1, 2]
    assert agent.reports() == [{"ready": 1}, {"ready": 2}]


def test_generation_whose_store_ends_before_the_next_is_announced_is_not_reported(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log would say that the rank cannot reach its peers."""

    class SecondAttemptError(Exception):
        pass

    def fails(*_: object, **__: object) -> None:
        raise SecondAttemptError if groups._generation == 2 else RuntimeError("Failed to recv, got 0 bytes")

    def close_and_announce(groups: ProcessGroups) -> None:
        close(groups)
        assert groups._control_pipe
        groups._control_pipe._news.acquire()  # it reads what follows only once this rank waits for it
        agent.announce(2)
        agent.order(go=2)

    groups = ProcessGroups(World(size=2), (torch.device("cpu"),), StopFlag(), in_place=True)
    close = ProcessGroups.close
    monkeypatch.setattr(process_groups, "_NEWS_S", 60.0)
    monkeypatch.setattr(process_groups, "open_group", fails)
    monkeypatch.setattr(ProcessGroups, "close", close_and_announce)
    agent.order(go=1)
    with pytest.raises(SecondAttemptError):
        groups.open()
    assert agent.reports() == [{"ready": 1}, {"ready": 2}]


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param("torch.distributed.TCPStore", id="store that is gone"),
        pytest.param("dtj.ranks.process_groups.open_group", id="peer that died before it connected"),
    ],
)
def test_rank_does_not_wait_for_what_a_generation_that_was_replaced_has_lost(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    """torch and gloo wait for it for a minute or longer, and cannot be interrupted.

    If a slow peer connects after all, the groups must not be registered in place of the next ones.
    """

    class SecondAttemptError(Exception):
        pass

    attempts: list[threading.Thread] = []
    registered: list[int] = []
    connected = threading.Event()

    def waits_in_the_library(*_: object, **__: object) -> None:
        attempts.append(threading.current_thread())
        if len(attempts) > 1:
            connected.set()
            attempts[0].join()
            raise SecondAttemptError
        agent.announce(2)
        agent.order(go=2)
        connected.wait()
        registered.append(1)

    monkeypatch.setattr(waits, waits_in_the_library)
    monkeypatch.setattr(process_groups, "_CHECK_S", 0.01)
    agent.order(go=1)
    with pytest.raises(SecondAttemptError):
        open_groups()
    assert registered == []


def test_rank_whose_peer_died_while_they_connected_joins_its_successor(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look under the same names in the store, although only one of them has tried before."""

    def rank(number: int) -> None:
        open_groups(number)
        os._exit(_JOINED)

    monkeypatch.setenv(contract.CONNECT_SECONDS, "2")  # with a peer that never comes
    survivor = fork_helper(lambda: rank(0), keep=range(3, 1000))
    agent.order(go=1)
    agent.wait_for("unformed")
    store = Store.start()
    successor = Agent(store, monkeypatch, generation=2)
    ranks = survivor, fork_helper(lambda: rank(1), keep=range(3, 1000))
    agent.announce(2, store)
    for each in (agent, successor):
        each.order(go=2)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks] == [_JOINED, _JOINED]
    store.stop()
