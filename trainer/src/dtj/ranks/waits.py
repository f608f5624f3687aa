"""Waits for gloo's collectives that end with the generation, even if gloo never ends them.

If a connection breaks while data is queued on it, gloo wakes threads that wait to receive, but none
that waits to send (Pair::signalException in gloo/transport/tcp/pair.cc passes over the unbound
buffers of the queue). A rank whose peer dies just then would wait for the timeout, a day.
A thread of gloo still does.

Only under an agent: its ranks end without waiting for threads that may yet complete a future.
"""

import os
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from dtj import contract
from dtj.ranks.world import collective_timeout

# A connection without other data takes so many bytes at once, so no sender waits (Linux: net.ipv4.tcp_wmem).
LEAST_HELD = 1 << 13

_lock = threading.Lock()
_waiting: "set[Future[Any]]" = set()


def may_last(device: torch.device) -> bool:
    """Collectives of this device's tensors are gloo's, and an agent may end their generation."""
    return device.type == "cpu" and contract.GENERATION in os.environ


def until_done(work: "Future[Any]") -> "Future[Any]":
    """Completed as `work` is, or failed by `end_all` if that comes first."""
    found: Future[Any] = Future()
    with _lock:
        _waiting.add(found)
    work.add_done_callback(lambda done: _complete(found, done))
    return found


def wait(work: dist.Work | None, device: torch.device) -> None:
    """Wait for a collective of this device's tensors; RuntimeError if it fails.

    work  None if this rank is not in the group
    """
    if work is None:
        return
    if may_last(device):
        until_done(work.get_future()).wait()
    else:
        work.wait()


def wait_for_peer(work: dist.Work | None) -> None:
    """Wait for a send or receive: gloo's own limit for it is the time to connect, also after that is over."""
    assert work  # this rank is in the group
    work.wait(collective_timeout())


def run(collective: Callable[[], object], device: torch.device) -> None:
    """Call one that has no work to wait for, as `dist.send`; RuntimeError if it fails.

    In a thread, which is left to itself if `end_all` comes first.
    """
    if not may_last(device):
        collective()
        return
    done: Future[Any] = Future()

    def complete() -> None:
        try:
            collective()
            done.set_result(None)
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            done.set_exception(error)

    found = until_done(done)
    threading.Thread(target=complete, name="dtj-sends", daemon=True).start()
    found.wait()


def end_all() -> None:
    """Let all waits fail now; called when this rank leaves its process groups, in any thread."""
    with _lock:
        left = list(_waiting)
        _waiting.clear()
    for each in left:
        each.set_exception(RuntimeError("the process group was left while a collective was under way"))


def _complete(found: "Future[Any]", done: "Future[Any]") -> None:
    with _lock:
        if found not in _waiting:
            return  # by end_all
        _waiting.discard(found)
    try:
        found.set_result(done.value())
    except Exception as error:  # noqa: BLE001 - whatever it is, the wait must end
        found.set_exception(error)
