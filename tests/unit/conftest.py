"""Makes a unit test fail if it starts a process or forms a process group."""

import os
import sys
from collections.abc import Iterator

import pytest

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


class Guard:
    """An audit hook, called for each start of a process; it raises while `is_on`. Hooks cannot be removed."""

    def __init__(self) -> None:
        self.is_on = False
        self._pid = os.getpid()
        sys.addaudithook(self._refuse)

    def _refuse(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.is_on and event in STARTS and os.getpid() == self._pid:
            raise AssertionError(
                f"{event}{arguments}: a unit test must not start a process; move it to tests/process"
            )


GUARD = Guard()


@pytest.fixture(autouse=True)
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Raise if the test starts a process or forms a process group."""
    if distributed := sys.modules.get("torch.distributed"):
        monkeypatch.setattr(distributed, "init_process_group", refuse_group)
    GUARD.is_on = True
    yield
    GUARD.is_on = False


def refuse_group(*_: object, **__: object) -> None:
    raise AssertionError("a unit test must not form a process group; move it to tests/process")
