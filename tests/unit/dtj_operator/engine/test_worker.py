"""A worker survives every failure of a reconcile and logs each failure once."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from dtj_operator.engine.worker import RECONCILE_TIMEOUT_S, TryLater, work
from dtj_operator.engine.workqueue import BACKOFF_JITTER, WorkQueue
from dtj_operator.kube.errors import Unavailable

pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]

Reconcile = Callable[[str], Awaitable[float | None]]


@asynccontextmanager
async def working(reconcile: Reconcile) -> AsyncIterator[WorkQueue[str]]:
    queue: WorkQueue[str] = WorkQueue(Random(1))
    task = asyncio.create_task(work(queue, reconcile))
    yield queue
    assert not task.done(), "a worker never ends"
    task.cancel()
    queue.close()
    await asyncio.gather(task, return_exceptions=True)


def looks(answers: list[float | Exception | None]) -> tuple[Reconcile, list[float]]:
    """Return a reconcile that gives these answers in turn, then None, and the times of its calls."""
    times: list[float] = []

    async def reconcile(_: str) -> float | None:
        times.append(asyncio.get_running_loop().time())
        answer = answers.pop(0) if answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    return reconcile, times


async def test_key_is_requeued_after_the_returned_delay() -> None:
    reconcile, times = looks([7.0, 0.0])
    async with working(reconcile) as queue:
        queue.add("a")
        await asyncio.sleep(100)

    assert times == pytest.approx([0, 7, 7])


async def test_failure_is_retried_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    reconcile, times = looks([ValueError("boom")])
    async with working(reconcile) as queue:
        queue.add("a")
        await asyncio.sleep(100)

    assert len(times) == 2
    assert [record.message for record in caplog.records] == ["reconcile failed"]
    assert caplog.records[0].exc_info is not None, "a bug is logged with its traceback"


async def test_busy_api_server_is_logged_without_a_traceback_and_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reconcile, times = looks([Unavailable("GET /x", 429, "TooManyRequests", "slow down", after_s=20)])
    async with working(reconcile) as queue:
        queue.add("a")
        await asyncio.sleep(100)

    assert times == pytest.approx([0, 20])
    assert not caplog.records[0].exc_info


async def test_postponed_reconcile_is_not_logged_as_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reconcile, times = looks([TryLater("old pods"), TryLater("old pods")])
    async with working(reconcile) as queue:
        queue.add("a")
        await asyncio.sleep(100)

    assert times == pytest.approx([0, 0.2, 0.6], rel=BACKOFF_JITTER), "the back-off doubles"
    assert not caplog.records


async def test_back_off_does_not_delay_a_deadline() -> None:
    reconcile, times = looks([TryLater("no capacity", within_s=0.1)])
    async with working(reconcile) as queue:
        queue.add("a")
        await asyncio.sleep(30)

    assert times == pytest.approx([0, 0.1])


async def test_reconcile_that_hangs_releases_its_key() -> None:
    calls = 0

    async def reconcile(_: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()

    async with working(reconcile) as queue:
        queue.add("a")
        await asyncio.sleep(2 * RECONCILE_TIMEOUT_S)

    assert calls == 2
