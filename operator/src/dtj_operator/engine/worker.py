"""Workers: take a key, reconcile it, then requeue it after a delay or a back-off.

Each failure is logged once, here. A failure never stops a worker: the key is retried with a growing back-off.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

from dtj_operator import log, metrics
from dtj_operator.engine.workqueue import WorkQueue

K = TypeVar("K", bound=Hashable)

# Longer than a reconcile that calls the API server for as long as it may; one that hangs is cancelled.
RECONCILE_TIMEOUT_S = 120.0

_log = logging.getLogger(__name__)


class TryLater(Exception):  # noqa: N818 - not an error: something else has to happen first
    """Raised by a reconcile that was refused or had outdated data; requeues the key after a back-off.

    within_s  at most this many seconds, whatever the back-off is
    """

    def __init__(self, why: str, *, within_s: float | None = None) -> None:
        super().__init__(why)
        self.within_s = within_s


async def work(queue: WorkQueue[K], reconcile: Callable[[K], Awaitable[float | None]]) -> None:
    """Work forever. `reconcile` returns the seconds until the next reconcile, or None."""
    while True:
        async with queue.take() as (key, waited_s):
            metrics.QUEUE_WAIT.observe(waited_s)
            with log.about(str(key)), metrics.RECONCILE.time():
                await _once(queue, reconcile, key)


async def _once(queue: WorkQueue[K], reconcile: Callable[[K], Awaitable[float | None]], key: K) -> None:
    try:
        async with asyncio.timeout(RECONCILE_TIMEOUT_S):
            again_s = await reconcile(key)
    except TryLater as later:
        delay_s = queue.retry(key)
        if later.within_s is not None:
            queue.add_after(key, later.within_s)  # the earlier of the two counts
        metrics.RECONCILES.labels("later").inc()
        _log.debug("reconcile postponed", extra={"why": str(later), "retry_in_s": round(delay_s, 1)})
    except Exception as error:  # noqa: BLE001 - the only place that survives every failure, and logs it
        delay_s = queue.retry(key, getattr(error, "after_s", 0.0))
        metrics.RECONCILES.labels("error").inc()
        expected = not isinstance(error, TimeoutError) and hasattr(error, "status")
        _log.warning(
            "reconcile failed",
            extra={"error": str(error) or type(error).__name__, "retry_in_s": round(delay_s, 1)},
            exc_info=None if expected else error,
        )
    else:
        queue.reset_backoff(key)
        metrics.RECONCILES.labels("done").inc()
        if again_s is not None:
            queue.add_after(key, again_s)
