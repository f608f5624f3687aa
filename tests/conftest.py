"""Settings for all suites."""

import asyncio
import atexit
import gc
import os
from collections.abc import Generator, Sequence
from pathlib import Path

import hypothesis
import pytest

from tests.support import forked

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is not a failure
hypothesis.settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """Set the main thread's event loop to None, and let a worker of pytest-xdist end at once.

    pytest-asyncio asks for the loop before its first test. asyncio would then create one that is never
    closed; the warning about it, an error here, would fail whichever test runs when it is garbage collected.

    When its exit functions run, a worker has sent its results, and pytest-xdist does not read its exit code.
    The last function, the first to be registered, avoids taking all modules apart: a second of CPU time.
    """
    asyncio.set_event_loop(None)
    if hasattr(config, "workerinput"):
        atexit.register(_end_now, os.getpid())
        if server := config.workerinput.get("forkserver"):
            forked.join(server)


def _end_now(worker: int) -> None:
    if os.getpid() == worker:  # a process that a test forks has an exit code
        os._exit(0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector off what the tests import: an eighth of the CPU time of the unit tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest tests: others run beside them, and none is left alone at the end."""
    if getattr(config.option, "loadgroup", False):  # a worker of pytest-xdist
        for item in items:
            keep_group(item)
    items.sort(key=lambda item: -seconds(item))
    if "worksteal" in getattr(config, "workerinput", {}).get("mainargv", ()):
        items[:] = dealt(items, int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))


def keep_group(item: pytest.Item) -> None:
    """Append a test's group to its id, by which pytest-xdist sends the tests of a group to one worker.

    pytest-xdist 3.8 appends it to an attribute that pytest 9.2 does not read, so that groups had no effect.
    """
    mark = item.get_closest_marker("xdist_group")
    ending = f"@{mark.args[0]}" if mark else ""
    if not item.nodeid.endswith(ending):
        item._id = type(item.id).parse(item.nodeid + ending)
    assert item.nodeid.endswith(ending), "else the mark has no effect"


def dealt(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """The tests in the order in which each worker gets a run of neighbours, its long tests first.

    The long tests of a file stay on one worker: they wait, else they would do so at the same time. Neighbours
    are often of one file and share what they have made.
    """
    files, others = dict[Path, list[pytest.Item]](), list[pytest.Item]()
    for item in items:
        (files.setdefault(item.path, []) if seconds(item) else others).append(item)
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for tests in sorted(files.values(), key=duration, reverse=True):
        min(shares, key=duration).extend(tests)
    found = list[pytest.Item]()
    for number, mine in enumerate(shares, start=1):
        share = len(items) // workers - len(mine) if number < workers else len(others)
        found += [*mine, *others[:share]]
        del others[:share]
    return found


def duration(items: Sequence[pytest.Item]) -> float:
    """About how long these tests take that are marked `long`."""
    return sum(map(seconds, items))


def seconds(item: pytest.Item) -> float:
    """About how long a test takes that is marked `long`; 0 for all others."""
    mark = item.get_closest_marker("long")
    return float(mark.args[0]) if mark else 0.0
