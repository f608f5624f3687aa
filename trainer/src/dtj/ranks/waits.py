"""Waits for gloo's collectives that end with the generation, even if gloo never ends them.

If a connection breaks while data is queued on it, gloo wakes threads that wait to receive, but none
that waits to send (Pair::signalException in gloo/transport/tcp/pair.cc passes over the unbound
buffers of the queue). A rank whose peer dies just then would wait for the timeout, a day.
A thread of gloo still does.

Only under an agent: its ranks end without waiting for threads that may yet complete a future.
"""

import os
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from dtj import contract

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


def wait(work: dist.Work, device: torch.device) -> None:
    """Wait for a collective of this device's tensors; RuntimeError if it fails."""
    if may_last(device):
        until_done(work.get_future()).wait()
    else:
        work.wait()


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
