"""A process that loads samples for its rank: when it ends, and how it reports samples it cannot send."""

from multiprocessing.queues import Queue
from typing import Any

from torch._utils import ExceptionWrapper

from dtj.errors import RecipeError
from dtj.ranks.parent_death import die_with


def start(_worker: int, *, parent: int, kind: str) -> None:
    """Set up a worker; it calls this first.

    parent  pid of its rank
    kind    name of the dataset's type, for errors
    """
    die_with(parent)  # otherwise it would keep the sockets of a dead rank open, and peers would wait forever
    _send_errors_of_sending(kind)


class Start:
    """The worker_init_fn of a loader of the user's own: also makes the worker end with its rank."""

    def __init__(self, parent: int, then: Any) -> None:
        self._parent, self._then = parent, then.then if isinstance(then, Start) else then

    @property
    def then(self) -> Any:
        """The user's own function, or None."""
        return self._then

    def __call__(self, number: int) -> None:
        die_with(self._parent)
        if self._then is not None:
            self._then(number)


def cannot_be_sent(what: str, error: BaseException) -> RecipeError:
    """The error for an object that cannot be pickled."""
    return RecipeError(
        f"{what} cannot be sent between a rank and its worker processes: {error}",
        fix="build it from tensors, numbers, strings, lists, dicts and top-level classes, or omit --workers",
    )


def _send_errors_of_sending(kind: str) -> None:
    """Send the rank an error for an item that cannot be pickled; it would otherwise wait forever.

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
