"""A process that loads samples ahead of its rank: how it ends, and what becomes of samples it cannot send."""

from multiprocessing.queues import Queue
from typing import Any

from torch._utils import ExceptionWrapper

from dtj.errors import RecipeError
from dtj.parent_death import die_with


def begin(_worker: int, *, parent: int, kind: str) -> None:
    """The first thing that a worker does.

    parent  pid of its rank
    kind    name of the data set's type
    """
    die_with(parent)  # one that outlives its rank holds the rank's sockets open: peers would wait for ever
    _send_errors_of_sending(kind)


def cannot_be_sent(what: str, error: BaseException) -> RecipeError:
    """The error for an object that pickle does not take."""
    return RecipeError(
        f"{what} cannot pass between a rank and its worker processes: {error}",
        fix="make it of tensors, numbers, strings, lists, dicts and named classes, or leave --workers out",
    )


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
