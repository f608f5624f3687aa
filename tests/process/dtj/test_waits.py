"""A rank leaves a collective that gloo would never end."""

import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from dtj import contract
from dtj.agent.child_process import end_helper, fork_helper
from dtj.agent.coordinator.store import Store
from dtj.agent.rank import preload
from dtj.parallel.ddp import RebuildableDDP
from dtj.parallel.layout import Layout
from dtj.parallel.pipeline import Pipeline
from dtj.parallel.stages import Piece
from dtj.ranks import exchange, waits
from dtj.ranks.world import World, open_group
from tests.support.commands import DEADLINE_S

_BYTES = 1 << 26  # more than a connection holds
_LEFT = 5  # an exit code
_PATIENCE_S = round(DEADLINE_S)
_CONNECT_S = 4


@pytest.fixture(scope="module", autouse=True)
def preloaded() -> None:
    """Import these once, and not in each rank that is forked from this process."""
    for name in preload.MODULES:
        importlib.import_module(name)


def fork(
    rank: int,
    port: int,
    act: Callable[[dist.ProcessGroup], None],
    *,
    connect_s: float = _PATIENCE_S,
    keep: Sequence[int] = (),
) -> int:
    """Fork a rank of two; `act` gets the group for agreements."""

    def run() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_PATIENCE_S)
        store = dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]
        store.set(f"started-{rank}", "")
        store.wait(["started-0", "started-1"])  # the limit for connecting does not include the other's start
        world, timeout = World(rank=rank, size=2), timedelta(seconds=connect_s)
        act(open_group(world, (torch.device("cpu"),), store=store, timeout=timeout))

    return fork_helper(run, keep=list(keep))


def broadcasts(_: dist.ProcessGroup) -> None:
    data = torch.ones(_BYTES, dtype=torch.uint8)
    work = dist.broadcast(data, src=0, async_op=True)
    assert work
    waits.wait(work, data.device)


def receives_broadcast(_: dist.ProcessGroup) -> tuple[torch.Tensor, dist.Work | None]:
    data = torch.zeros(_BYTES, dtype=torch.uint8)
    return data, dist.broadcast(data, src=0, async_op=True)


def sends_buffers(_: dist.ProcessGroup) -> None:
    module = torch.nn.Linear(1, 1)
    module.register_buffer("mask", torch.ones(_BYTES, dtype=torch.uint8))
    RebuildableDDP(module, device=torch.device("cpu"), init_sync=False)(torch.ones(1))


def hands_over(group: dist.ProcessGroup) -> None:
    exchange.send({"state": torch.ones(_BYTES, dtype=torch.uint8)}, to=[1], group=group)


def receives_state(group: dist.ProcessGroup) -> tuple[torch.Tensor, dist.Work | None]:
    length = torch.zeros(1, dtype=torch.int64)
    dist.recv(length, group=group, group_src=0)
    data = torch.zeros(int(length), dtype=torch.uint8)
    return data, dist.irecv(data, group=group, group_src=0)


class TwoPieces(torch.nn.Sequential):
    def pipeline_plan(self) -> list[Piece]:
        return [(layer, [layer]) for layer in self]


@pytest.mark.parametrize(
    ("sends", "receives"),
    [
        pytest.param(broadcasts, receives_broadcast, id="a collective"),
        pytest.param(sends_buffers, receives_broadcast, id="the buffers of a model"),
        pytest.param(hands_over, receives_state, id="a state"),
    ],
)
def test_sender_whose_peer_died_leaves_with_the_generation(
    monkeypatch: pytest.MonkeyPatch,
    sends: Callable[[dist.ProcessGroup], None],
    receives: Callable[[dist.ProcessGroup], tuple[torch.Tensor, dist.Work | None]],
) -> None:
    """The peer dies while data is queued for it. Then gloo wakes those that receive, and no sender."""
    monkeypatch.setenv(contract.GENERATION, "1")
    news, announce = os.pipe()

    def leaves_on_news() -> None:
        os.read(news, 1)
        waits.end_all()

    def leaves(group: dist.ProcessGroup) -> None:
        threading.Thread(target=leaves_on_news, daemon=True).start()
        try:
            sends(group)
        except RuntimeError:
            os._exit(_LEFT)

    def stops_while_it_receives(group: dist.ProcessGroup) -> None:
        # Threads of gloo may else receive all while this one has no turn, if another processor is free.
        one = {min(os.sched_getaffinity(0))}
        for thread in (int(folder.name) for folder in Path("/proc/self/task").iterdir()):
            os.sched_setaffinity(thread, one)
            if thread != os.getpid():
                os.setpriority(os.PRIO_PROCESS, thread, 19)
        data, _work = receives(group)
        while not data[0]:
            pass
        os.kill(os.getpid(), signal.SIGSTOP)

    store = Store.start()
    sender = fork(0, store.port, leaves, keep=[news])
    peer = fork(1, store.port, stops_while_it_receives, keep=[])
    assert os.WIFSTOPPED(os.waitpid(peer, os.WUNTRACED)[1])
    end_helper(peer)
    os.write(announce, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(sender, 0)[1]) == _LEFT
    store.stop()


def test_state_may_come_later_than_a_peer_may_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """To collect a large state takes long, and the ranks that need it get it one after the other."""

    def sends_late(group: dist.ProcessGroup) -> None:
        time.sleep(1.5 * _CONNECT_S)
        exchange.send("state", to=[1], group=group)

    def receives(group: dist.ProcessGroup) -> None:
        if exchange.receive(0, group=group) == "state":
            os._exit(_LEFT)

    assert exit_codes(monkeypatch, sends_late, receives) == [0, _LEFT]


def test_stage_may_wait_longer_than_a_peer_may_take_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank of another stage may be in `run.pause`."""

    def trains(_: dist.ProcessGroup) -> None:
        rank = dist.get_rank()
        strategy = Pipeline(Layout(strategy="pp", sizes={"pp": 2}, rank=rank), torch.device("cpu"))
        model = strategy.wrap(TwoPieces(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)))
        batch = SimpleNamespace(x=torch.ones(1, 1), indices=[0])
        for pause_s in (0, 1.5 * _CONNECT_S):  # in the first step torch has collectives as well
            if rank == 0:
                time.sleep(pause_s)
            strategy.accumulate(lambda micro_batch: model(micro_batch.x).sum(), [batch, batch])
        os._exit(_LEFT)

    assert exit_codes(monkeypatch, trains, trains) == [_LEFT, _LEFT]


def exit_codes(monkeypatch: pytest.MonkeyPatch, *acts: Callable[[dist.ProcessGroup], None]) -> list[int]:
    """Of two ranks that connect within _CONNECT_S; each does one of these."""
    monkeypatch.setenv(contract.GENERATION, "1")
    store = Store.start()
    ranks = [fork(rank, store.port, act, connect_s=_CONNECT_S) for rank, act in enumerate(acts)]
    found = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    store.stop()
    return found
