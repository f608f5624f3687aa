"""The death of a process that loads samples is raised where samples are loaded, with the signal."""

import sys
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from dtj.data import worker
from dtj.errors import WorkerLostError


class Worker(BaseProcess):
    """A process as its parent sees it."""

    pid: Any = 0  # attributes instead of properties
    exitcode: Any = None
    sentinel: Any = 0

    def __init__(self, pid: int, exitcode: int | None) -> None:
        super().__init__()
        self.pid, self.exitcode = pid, exitcode


class Loading(Iterator[int]):
    """As an iterator of torch's DataLoader: it has worker processes, and may fail."""

    def __init__(self, *exitcodes: int | None, fails: Exception | None = None) -> None:
        self._workers: Any = [Worker(7 + number, code) for number, code in enumerate(exitcodes)]
        self._fails = fails

    def __next__(self) -> int:
        if self._fails:
            raise self._fails
        return 1


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-9, r"worker \(pid 8\) was killed by SIGKILL \(often the kernel's OOM killer: out of memory\)$"),
        (-11, r"worker \(pid 8\) was killed by SIGSEGV$"),
        (3, r"worker \(pid 8\) ended with exit code 3$"),
    ],
)
def test_death_is_raised_when_the_next_item_is_read(code: int, message: str) -> None:
    with pytest.raises(WorkerLostError, match=message):
        next(worker.Items(Loading(None, code, 0)))


def test_worker_that_has_nothing_left_to_load_is_not_lost() -> None:
    assert next(worker.Items(Loading(None, 0))) == 1


def test_iterator_of_another_kind_is_left_alone() -> None:
    loading = Loading()
    loading._workers = 4
    assert next(worker.Items(loading)) == 1


def test_workers_are_not_lost_once_the_loader_has_ended_them() -> None:
    class Ending(Loading):
        def __next__(self) -> int:
            self._workers[0].exitcode = -15
            raise StopIteration

    items = worker.Items(Ending(None))
    assert [*items, *items] == []


def test_signal_is_named_if_torch_only_says_that_a_worker_has_exited() -> None:
    class Ending(Loading):
        def __next__(self) -> int:
            self._workers[0].exitcode = -9
            raise RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")

    with pytest.raises(WorkerLostError, match="killed by SIGKILL"):
        next(worker.Items(Ending(None)))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("Connection reset by peer"),
        EOFError(),
    ],
    ids=repr,
)
def test_worker_whose_connection_breaks_ends_a_moment_later(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = Loading(None, fails=error)

    def ends(_sentinels: list[int], timeout: float) -> None:
        assert timeout > 0
        loading._workers[0].exitcode = -9

    monkeypatch.setattr("multiprocessing.connection.wait", ends)
    with pytest.raises(WorkerLostError, match="killed by SIGKILL"):
        next(worker.Items(loading))


@pytest.mark.parametrize("error", [ConnectionResetError("of a data service"), RuntimeError("label 11")])
def test_error_of_the_data_set_stays(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        next(worker.Items(Loading(fails=error)))


@pytest.mark.parametrize("is_loading", [True, False])
def test_signal_of_a_death_interrupts_only_a_loader(
    is_loading: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a save, or while the rank joins its peers, it would count as a failure of that."""

    def torchs_check() -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    monkeypatch.setattr(worker, "_torchs_check", torchs_check)
    if is_loading:
        monkeypatch.setattr(worker, "dataloader", sys.modules[__name__])
        with pytest.raises(RuntimeError, match="pid 7"):
            worker._check()
    else:
        worker._check()
