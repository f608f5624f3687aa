"""Leaving the process groups of a generation."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from dtj.ranks import gloo_sockets, process_groups
from dtj.ranks.control_pipe import Generation
from dtj.ranks.process_groups import ProcessGroups, RetiredGroups
from dtj.ranks.stop import StopFlag
from dtj.ranks.world import World

TIMEOUT = timedelta(seconds=100)


def test_retired_group_with_a_pending_collective_does_not_block():
    """The peer does not join the collective: without a thread, the second `add` would block for long."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as pool:
        group, peer = pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, TIMEOUT), range(2))
    work = group.allreduce([torch.ones(1)])  # type: ignore[attr-defined]
    retired = RetiredGroups()
    retired.add([group])
    del group

    retired.add([])

    (cleanup,) = (each for each in threading.enumerate() if each.name == "dtj-retired-groups")
    assert not work.is_completed()
    peer.allreduce([torch.ones(1)]).wait()  # type: ignore[attr-defined]  # so that the test leaves nothing behind
    cleanup.join(60)
    assert not cleanup.is_alive()


@pytest.mark.parametrize(("kind", "broken"), [("cpu", [{7, 29400}]), ("cuda", [])])
def test_only_sockets_of_gloo_are_shut_down(
    monkeypatch: pytest.MonkeyPatch, kind: str, broken: list[set[int]]
) -> None:
    """NCCL, and the store that its watchdog polls, open sockets at the same time; they end by themselves."""
    listening = iter([frozenset(), frozenset({7})])
    found: list[frozenset[int]] = []
    monkeypatch.setattr(gloo_sockets, "listening_ports", lambda: next(listening))
    monkeypatch.setattr(gloo_sockets, "shut_down", lambda own, theirs: found.append(own and theirs))
    monkeypatch.setattr(dist, "TCPStore", lambda *_, **__: None)
    monkeypatch.setattr(process_groups, "open_group", lambda *_, **__: None)
    monkeypatch.setattr(process_groups, "_of_all", lambda ports, _group: ports)
    monkeypatch.setattr(ProcessGroups, "_is_replaced", lambda *_: False)
    groups = ProcessGroups(World(size=2), (torch.device(kind, 0),), StopFlag(), in_place=True)
    groups._open(Generation(number=1, addr="localhost", port=29400, connect_s=60))
    groups.close()
    assert found == broken


def test_process_that_the_program_forked_leaves_the_connections_of_the_rank_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs the exit functions that it has inherited."""
    groups = ProcessGroups(World(size=2), (torch.device("cpu"),), StopFlag(), in_place=True)
    broken = list[bool]()
    monkeypatch.setattr(groups, "_break", lambda: broken.append(True))
    with monkeypatch.context() as forked:
        forked.setattr("os.getpid", lambda: 0)
        groups.close()
    assert not broken
    groups.close()
    assert broken


def test_generation_that_is_replaced_while_the_ranks_exchange_their_ports_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ports of the others were not known when the news came: connections to a lost node are open."""
    groups = ProcessGroups(World(size=2), (torch.device("cpu"),), StopFlag(), in_place=True)
    news: list[bool] = []

    def exchange(ports: frozenset[int], _group: object) -> frozenset[int]:
        news.append(True)
        return ports

    monkeypatch.setattr(dist, "TCPStore", lambda *_, **__: None)
    monkeypatch.setattr(process_groups, "open_group", lambda *_, **__: None)
    monkeypatch.setattr(process_groups, "_of_all", exchange)
    monkeypatch.setattr(ProcessGroups, "_is_replaced", lambda *_: bool(news))
    with pytest.raises(RuntimeError, match="generation 1 was replaced"):
        groups._open(Generation(number=1, addr="localhost", port=29400, connect_s=60))
