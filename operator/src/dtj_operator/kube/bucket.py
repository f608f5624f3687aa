"""A token bucket on the event loop: limits the average rate and the size of a burst."""

import asyncio


class Bucket:
    """`take` waits for a token; callers are served in order."""

    def __init__(self, per_second: float, burst: float | None = None) -> None:
        self._per_second, self._burst = per_second, burst if burst is not None else max(1.0, per_second)
        self._tokens, self._at = self._burst, 0.0

    async def take(self) -> float:
        """Wait for a token; return the seconds waited."""
        now = asyncio.get_running_loop().time()
        refilled = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._tokens, self._at = refilled - 1, now  # below 0: tokens that are not there yet
        delay = max(0.0, -self._tokens / self._per_second)
        if delay > 0:
            await asyncio.sleep(delay)
        return delay
