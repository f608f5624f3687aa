"""A process that loads samples for its rank: when it ends, and how it reports samples it cannot send."""

import multiprocessing.connection
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from types import FrameType
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import dataloader
from torch.utils.data._utils import signal_handling

from dtj.errors import OFTEN_OUT_OF_MEMORY, RecipeError, WorkerLostError, how_it_ended
from dtj.ranks.parent_death import die_with

# How much later than the end of its connections a worker may end.
_END_S = 1.0
_torchs_check = signal_handling._error_if_any_worker_fails  # type: ignore[attr-defined]


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


class Items(Iterator[Any]):
    """What a loader yields. WorkerLostError if a worker of it has died, whatever torch raises then."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __next__(self) -> Any:
        self._raise_if_lost()
        try:
            return next(self._items)
        except StopIteration:
            self._items = iter(())  # torch has ended the workers
            raise
        except RuntimeError:
            self._raise_if_lost()
            raise
        except (ConnectionError, EOFError):
            if workers := self._workers:  # the connections of one that dies break before it has ended
                multiprocessing.connection.wait([each.sentinel for each in workers], timeout=_END_S)
            self._raise_if_lost()
            raise

    def _raise_if_lost(self) -> None:
        for each in self._workers:
            if code := each.exitcode:
                hint = OFTEN_OUT_OF_MEMORY if code == -signal.SIGKILL else ""
                raise WorkerLostError(f"DataLoader worker (pid {each.pid}) {how_it_ended(code)}{hint}")

    @property
    def _workers(self) -> list[BaseProcess]:
        found = getattr(self._items, "_workers", None)  # of an iterator of torch's, or of any other one
        return [each for each in found if isinstance(each, BaseProcess)] if isinstance(found, list) else []


def leave_losses_to_items() -> None:
    """From now on the signal of a worker's death raises an error only within torch's DataLoader.

    torch raises it whatever the rank does at that moment, and it would count as a failure of that: of joining
    the peers, or of writing a checkpoint.
    """
    signal_handling._error_if_any_worker_fails = _check  # type: ignore[attr-defined]


def _check() -> None:
    try:
        _torchs_check()
    except RuntimeError:
        if _is_loading():
            raise


def _is_loading() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals is vars(dataloader):
            return True
        frame = frame.f_back
    return False


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
