"""A token bucket on the event loop: so many requests a second on average, so many at once."""

import asyncio


class Bucket:
    """`take` waits for its turn; callers are served in order."""

    def __init__(self, per_second: float, burst: float | None = None) -> None:
        self._per_second, self._burst = per_second, burst if burst is not None else max(1.0, per_second)
        self._tokens, self._at = self._burst, 0.0

    async def take(self) -> float:
        """Wait for a token; return the seconds waited."""
        delay = self._reserve()
        if delay > 0:
            await asyncio.sleep(delay)
        return delay

    def try_take(self) -> bool:
        """Take a token if there is one now."""
        self._refill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _reserve(self) -> float:
        """Take a token that may not be there yet: the debt is this caller's delay."""
        self._refill()
        self._tokens -= 1
        return max(0.0, -self._tokens / self._per_second)

    def _refill(self) -> None:
        now = asyncio.get_running_loop().time()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
