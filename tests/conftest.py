"""For every suite: what the test runner itself would otherwise leave open."""

import asyncio

import hypothesis

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is not a failure
hypothesis.settings.load_profile("untimed")


def pytest_configure() -> None:
    """Say that the main thread has no event loop.

    pytest-asyncio asks for one before its first test; asyncio makes one that nobody closes, and the warning
    about it, which is an error here, hits whichever test runs when it is collected.
    """
    asyncio.set_event_loop(None)
