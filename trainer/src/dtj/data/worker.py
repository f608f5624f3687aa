"""A process that loads samples for its rank: when it ends, and how it reports samples it cannot send."""

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.queues import Queue
from typing import Any

from torch._utils import ExceptionWrapper

from dtj.errors import RecipeError
from dtj.ranks.parent_death import die_with


@dataclass(frozen=True)
class Start:
    """What a worker calls first, as worker_init_fn.

    parent  pid of its rank
    then    what the user, or the loader, wants to be called with the worker's number
    """

    parent: int
    then: Callable[[int], None] | None

    def __call__(self, number: int) -> None:
        # Else it would keep the sockets of a dead rank open, and peers would wait forever.
        die_with(self.parent)
        if self.then is not None:
            self.then(number)


def cannot_be_sent(what: str, error: BaseException) -> RecipeError:
    """The error for an object that cannot be pickled."""
    return RecipeError(
        f"{what} cannot be sent between a rank and its worker processes: {error}",
        fix="build it from tensors, numbers, strings, lists, dicts and top-level classes, or omit --workers",
    )


def send_errors_of_sending(kind: str, _number: int) -> None:
    """Send the rank an error for an item that cannot be pickled; it would otherwise wait forever.

    kind  name of the dataset's type, for errors
    By default Python only prints that error and drops the item.
    """

    def send_error(queue: "Queue[Any]", error: BaseException, item: Any) -> None:
        number, samples = item
        if isinstance(samples, ExceptionWrapper):  # its exception class is local to a function
            samples.exc_type = RuntimeError
            queue.put((number, samples))
        else:
            queue.put((number, cannot_be_sent(f"what the dataset {kind} returned", error)))

    Queue._on_queue_feeder_error = send_error  # type: ignore[attr-defined]
