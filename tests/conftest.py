"""Settings for all suites."""

import asyncio
import os

import hypothesis
import pytest

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is not a failure
hypothesis.settings.load_profile("untimed")


def pytest_configure() -> None:
    """Set the main thread's event loop to None.

    pytest-asyncio asks for the loop before its first test. asyncio would then create one that is never
    closed; the warning about it, an error here, would fail whichever test runs when it is garbage collected.
    """
    asyncio.set_event_loop(None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest tests: others run beside them, and none is left alone at the end."""
    items.sort(key=lambda item: -seconds(item))
    if "worksteal" in getattr(config, "workerinput", {}).get("mainargv", ()):
        # Each worker begins with a run of neighbours, so the longest tests must not be neighbours.
        workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        items[:] = [item for first in range(workers) for item in items[first::workers]]


def seconds(item: pytest.Item) -> float:
    """About how long a test takes that is marked `long`; 0 for all others."""
    mark = item.get_closest_marker("long")
    return float(mark.args[0]) if mark else 0.0
