"""A process that loads samples ahead of its rank: how it ends, and what becomes of samples it cannot send."""

import ctypes
import os
import signal
import sys
from multiprocessing.queues import Queue
from typing import Any

from torch._utils import ExceptionWrapper

from dtj.errors import RecipeError

_PR_SET_PDEATHSIG = 1


def begin(_worker: int, *, parent: int, kind: str) -> None:
    """The first thing that a worker does.

    parent  pid of its rank
    kind    name of the data set's type
    """
    _die_with(parent)
    _send_errors_of_sending(kind)


def cannot_be_sent(what: str, error: BaseException) -> RecipeError:
    """The error for an object that pickle does not take."""
    return RecipeError(
        f"{what} cannot pass between a rank and its worker processes: {error}",
        fix="make it of tensors, numbers, strings, lists, dicts and named classes, or leave --workers out",
    )


def _die_with(parent: int) -> None:
    """A worker that outlives its rank holds the rank's sockets open, and peers would wait for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before this was asked for
            os._exit(1)


def _send_errors_of_sending(kind: str) -> None:
    """Python only prints what a queue cannot pickle and goes on without it: the rank would wait for ever."""

    def send_error(queue: "Queue[Any]", error: BaseException, item: Any) -> None:
        number, samples = item
        if isinstance(samples, ExceptionWrapper):  # a class of exception that only exists in a function
            samples.exc_type = RuntimeError
            queue.put((number, samples))
        else:
            queue.put((number, cannot_be_sent(f"what the data set {kind} gives", error)))

    Queue._on_queue_feeder_error = send_error  # type: ignore[attr-defined]
