"""Polls the agent of replica 0 of running jobs, and keeps each one's last answer.

An agent is optional: no answer means none, and is asked ever more rarely. One that has answered and falls
silent, or that waits for another replica, is asked more often: somebody's node may be lost. What a pod
answers is somebody else's program talking: it is bounded in size and in time here, in values by agent_status.
Before this stands reconcile, which says whom to ask.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import aiohttp
import msgspec

from dtj_operator import agent_status, metrics, names
from dtj_operator.names import Key
from dtj_operator.plan.snapshot import CUT_OFF_S, DOUBT_S, Progress

AT_ONCE = 16
TIMEOUT_S = 3.0
LARGEST_ANSWER = 4 * 1024 * 1024  # bytes; a line per local rank and metric fits many times
RARELY = 6  # times the usual pause, where so many questions in a row were not answered
OFTEN = 0.5  # of the usual pause, while a node may be lost
SILENT = 2  # questions in a row that an agent which has answered leaves open; one may have been lost

Ask = Callable[[str], Awaitable[bytes]]


@dataclass
class _Followed:
    uid: str
    attempt: int
    address: str
    has_answered: bool
    heard_at: float  # when it last answered, or the first question was asked
    unanswered: int = 0  # in a row
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def is_in_doubt(self, now: float) -> bool:
        """Its silence is news; for so long only, however quickly a network says that it is not there."""
        return self.has_answered and self.unanswered > 0 and now - self.heard_at < DOUBT_S


class Poller:
    """One task per running job; `ask` fetches the answer of an address, and raises OSError for none."""

    def __init__(
        self,
        ask: Ask,
        on_news: Callable[[Key], None],
        wall: Callable[[], float],
        *,
        every_s: float,
        tell_s: float,
    ) -> None:
        self._ask, self._on_news, self._wall = ask, on_news, wall
        self._every_s, self._tell_s = every_s, tell_s
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._followed: dict[Key, _Followed] = {}
        self._last: dict[Key, tuple[str, Progress]] = {}

    def follow(self, key: Key, uid: str, attempt: int, address: str, *, has_answered: bool = False) -> None:
        """Ask this address from now on, until told otherwise.

        has_answered  it has in this attempt, before this process began to ask
        """
        known = self._followed.get(key)
        if known is not None and (known.uid, known.attempt, known.address) == (uid, attempt, address):
            return
        self.leave(key)
        followed = self._followed[key] = _Followed(uid, attempt, address, has_answered, _now())
        followed.task = asyncio.create_task(self._follow(key, followed), name=f"poll {key}")

    def leave(self, key: Key) -> None:
        """Ask no more; the last answer stays."""
        if (known := self._followed.pop(key, None)) is not None and known.task is not None:
            known.task.cancel()

    def forget(self, key: Key) -> None:
        self.leave(key)
        self._last.pop(key, None)

    def last(self, key: Key, uid: str, attempt: int) -> Progress | None:
        """The last answer of this attempt of this very job."""
        known_uid, progress = self._last.get(key, ("", None))
        return progress if known_uid == uid and progress is not None and progress.attempt == attempt else None

    def silent(self, key: Key, uid: str, attempt: int) -> bool:
        """Whether the agent that is asked now has answered in this attempt, and does so no more."""
        known = self._followed.get(key)
        if known is None or (known.uid, known.attempt) != (uid, attempt):
            return False
        return known.is_in_doubt(_now()) and known.unanswered >= SILENT

    async def close(self) -> None:
        tasks = [followed.task for followed in self._followed.values() if followed.task is not None]
        for key in list(self._followed):
            self.leave(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, key: Key, asked: _Followed) -> None:
        told = float("-inf")
        while True:
            progress = await self._poll(key, asked.address)
            if progress is None:
                self._unanswered(key, asked)
            else:
                asked.unanswered, asked.heard_at = 0, _now()
            if progress is not None and progress.attempt == asked.attempt:
                asked.has_answered = True
                fresh = self.last(key, asked.uid, asked.attempt)
                self._last[key] = asked.uid, progress
                moved = fresh is None or fresh.step != progress.step
                patient = fresh is not None and _urgent(fresh) == _urgent(progress)
                if not patient or (moved and _now() - told >= self._tell_s - self._every_s / 2):
                    told = _now()
                    self._on_news(key)
            await asyncio.sleep(self._every_s * _pace(asked, progress, _now()))

    def _unanswered(self, key: Key, asked: _Followed) -> None:
        asked.unanswered += 1
        if asked.has_answered and asked.unanswered == SILENT:
            self._on_news(key)
        if asked.unanswered == RARELY:
            self._clear_slow(key)

    def _clear_slow(self, key: Key) -> None:
        """Who was slow, hung or missing when the agent last spoke may not be so any more."""
        uid, last = self._last.get(key, ("", None))
        if last is not None and (last.slowest or last.hang or last.missing):
            self._last[key] = uid, replace(last, slowest=None, hang=None, missing=())
            self._on_news(key)

    async def _poll(self, key: Key, address: str) -> Progress | None:
        try:
            async with self._at_once, asyncio.timeout(TIMEOUT_S):
                raw = await self._ask(address)
            progress = agent_status.parse(raw, key, self._wall(), address)
        except (OSError, TimeoutError, aiohttp.ClientError, msgspec.MsgspecError):
            metrics.POLLS.labels("nothing").inc()
            return None
        metrics.POLLS.labels("answer").inc()
        return progress


def _now() -> float:
    return asyncio.get_running_loop().time()


def _pace(asked: _Followed, progress: Progress | None, now: float) -> float:
    """The pause until the next question, in usual ones."""
    waits = progress is not None and any(missing.seconds < DOUBT_S for missing in progress.missing)
    if waits or asked.is_in_doubt(now):
        return OFTEN
    return RARELY if asked.unanswered > RARELY else 1


def _urgent(progress: Progress) -> tuple[object, ...]:
    """What the next fault is judged by, and who holds the others up."""
    slow, hang = progress.slowest, progress.hang
    missing = [(each.replica, each.seconds >= CUT_OFF_S) for each in progress.missing]
    return progress.rejoin, progress.in_place, slow and slow.rank, hang and hang.ranks, missing


class HttpAsk:
    """Asks over HTTP: no proxy, no redirect, no more than a bounded answer."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=AT_ONCE, force_close=True))

    async def __call__(self, address: str) -> bytes:
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{names.AGENT_PORT}/status"
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise OSError(f"agent at {address} returned HTTP status {response.status}")
            raw = await response.content.read(LARGEST_ANSWER)
            while not response.content.at_eof() and len(raw) < LARGEST_ANSWER:
                raw += await response.content.read(LARGEST_ANSWER - len(raw))
            return raw

    async def close(self) -> None:
        await self._session.close()
