"""A rank leaves a collective that gloo would never end."""

import os
import signal
import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from dtj import contract
from dtj.agent.child_process import end_helper, fork_helper
from dtj.agent.coordinator.store import Store
from dtj.ranks import waits

_BYTES = 1 << 26  # more than a connection holds
_LEFT = 5  # an exit code
_PATIENCE_S = 60


def fork(rank: int, port: int, broadcasts: Callable[[torch.Tensor], None], *, keep: list[int]) -> int:
    """Fork a rank of two, the first of which has ones."""

    def run() -> None:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        broadcasts(torch.full((_BYTES,), 1 - rank, dtype=torch.uint8))

    return fork_helper(run, keep=keep)


def stops_while_it_receives(data: torch.Tensor) -> None:
    dist.broadcast(data, src=0, async_op=True)
    while not data[0]:
        pass
    os.kill(os.getpid(), signal.SIGSTOP)


def test_sender_whose_peer_died_leaves_with_the_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer dies while data is queued for it. Then gloo wakes those that receive, and no sender."""
    monkeypatch.setenv(contract.GENERATION, "1")
    news, announce = os.pipe()

    def leaves_on_news() -> None:
        os.read(news, 1)
        waits.end_all()

    def sends(data: torch.Tensor) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_PATIENCE_S)
        work = dist.broadcast(data, src=0, async_op=True)
        assert work
        threading.Thread(target=leaves_on_news, daemon=True).start()
        try:
            waits.wait(work, data.device)
        except RuntimeError:
            os._exit(_LEFT)

    store = Store.start()
    sender = fork(0, store.port, sends, keep=[news])
    peer = fork(1, store.port, stops_while_it_receives, keep=[])
    assert os.WIFSTOPPED(os.waitpid(peer, os.WUNTRACED)[1])
    end_helper(peer)
    os.write(announce, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(sender, 0)[1]) == _LEFT
    store.stop()
