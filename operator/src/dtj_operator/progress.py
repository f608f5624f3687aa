"""Polls the agent of replica 0 of each running job and keeps its last answer.

An agent is optional: a pod that does not answer is polled less often. An agent that answered and then stops
answering, or that is waiting for another replica, is polled more often, because a node may be lost. The
answers come from a user's program: this module limits their size and time, `agent_status.py` checks their
values. `reconcile.py` says which pods to poll.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
from msgspec.structs import replace

from dtj_operator import metrics
from dtj_operator.engine.turns import Turns
from dtj_operator.model import agent_status, names
from dtj_operator.model.agent_status import Progress
from dtj_operator.model.names import Key
from dtj_operator.plan.isolation import ISOLATED_AFTER_S
from dtj_operator.plan.snapshot import SILENCE_COUNTS_S

POLLS_IN_FLIGHT = 128  # many, because a zone full of agents that do not answer must not delay the others
POLL_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 1.0
LARGEST_ANSWER = 256 * 1024  # bytes; the agent's document has at most 1,000 ranks
SLOW = 6  # after this many unanswered polls in a row, poll this many times less often
FAST = 0.5  # of the usual interval, while a node may be lost
SILENT_AFTER = 2  # unanswered polls in a row of an agent that answered before; a single poll may get lost

Ask = Callable[[str], Awaitable[bytes]]


@dataclass
class _Followed:
    uid: str
    attempt: int
    address: str
    ranks: int
    has_answered: bool
    answered_at: float  # when it last answered, or when polling started
    unanswered: int = 0  # polls in a row
    written: object = None  # the step when the status was last written; None: not yet
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def is_newly_silent(self, now: float) -> bool:
        """Whether it answered before and stopped less than SILENCE_COUNTS_S ago."""
        return self.has_answered and self.unanswered > 0 and now - self.answered_at < SILENCE_COUNTS_S


class Poller:
    """Runs one task per running job.

    ask      returns the answer of an address, or raises OSError
    on_news  called when an answer may change a decision
    turns    of jobs whose progress is to be written
    """

    def __init__(
        self,
        ask: Ask,
        on_news: Callable[[Key], None],
        wall: Callable[[], float],
        turns: Turns[Key],
        *,
        poll_s: float,
    ) -> None:
        self._ask, self._on_news, self._wall = ask, on_news, wall
        self._turns, self._poll_s = turns, poll_s
        self._in_flight = asyncio.Semaphore(POLLS_IN_FLIGHT)
        self._followed: dict[Key, _Followed] = {}
        self._last: dict[Key, tuple[str, Progress]] = {}

    def follow(
        self, key: Key, uid: str, attempt: int, address: str, *, ranks: int = 1, has_answered: bool = False
    ) -> None:
        """Poll this address until `stop` or another `follow`.

        ranks         of the job at most; an answer that names more is not believed
        has_answered  the agent answered in this attempt before this process started to poll it
        """
        known = self._followed.get(key)
        if known is not None and (known.uid, known.attempt, known.address) == (uid, attempt, address):
            return
        self.stop(key)
        followed = self._followed[key] = _Followed(uid, attempt, address, ranks, has_answered, _now())
        followed.task = asyncio.create_task(self._follow(key, followed), name=f"poll {key}")

    def stop(self, key: Key) -> None:
        """Stop polling; keep the last answer."""
        self._turns.leave(key)
        if (known := self._followed.pop(key, None)) is not None and known.task is not None:
            known.task.cancel()

    def forget(self, key: Key) -> None:
        """Stop polling and drop the last answer."""
        self.stop(key)
        self._last.pop(key, None)

    def last(self, key: Key, uid: str, attempt: int) -> Progress | None:
        """The last answer of this attempt of the job with this uid."""
        known_uid, progress = self._last.get(key, ("", None))
        return progress if known_uid == uid and progress is not None and progress.attempt == attempt else None

    def silent(self, key: Key, uid: str, attempt: int) -> bool:
        """Whether the polled agent answered in this attempt and has now stopped answering."""
        known = self._followed.get(key)
        if known is None or (known.uid, known.attempt) != (uid, attempt):
            return False
        return known.is_newly_silent(_now()) and known.unanswered >= SILENT_AFTER

    def may_write(self, key: Key) -> bool:
        """Whether it is this job's turn to have its progress written, although nothing else changed."""
        return self._turns.has(key)

    def note_written(self, key: Key, progress: Progress | None) -> None:
        """Note that the stored status has this answer; None: the job had not answered when it was read."""
        if progress is None:
            return
        self._turns.done(key)
        if (known := self._followed.get(key)) is not None:
            known.written = progress.step

    async def close(self) -> None:
        self._turns.close()
        tasks = [followed.task for followed in self._followed.values() if followed.task is not None]
        for key in list(self._followed):
            self.stop(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, key: Key, followed: _Followed) -> None:
        while True:
            progress = await self._poll(key, followed)
            if progress is None:
                self._note_unanswered(key, followed)
            else:
                followed.unanswered, followed.answered_at = 0, _now()
            if progress is not None and progress.attempt == followed.attempt:
                followed.has_answered = True
                last = self.last(key, followed.uid, followed.attempt)
                self._last[key] = followed.uid, progress
                if last is None or _urgent(last) != _urgent(progress):
                    self._on_news(key)
                if last is None or progress.step != followed.written:
                    self._turns.ask(key)
            await asyncio.sleep(self._poll_s * _intervals(followed, progress, _now()))

    def _note_unanswered(self, key: Key, followed: _Followed) -> None:
        followed.unanswered += 1
        if followed.has_answered and followed.unanswered == SILENT_AFTER:
            self._on_news(key)
        if followed.unanswered == SLOW:
            self._clear_reported(key)

    def _clear_reported(self, key: Key) -> None:
        """Clear what the last answer says is wrong: it may have passed since."""
        uid, last = self._last.get(key, ("", None))
        if last is not None and (last.slowest or last.hang or last.save_failure or last.silent_replicas):
            self._last[key] = uid, replace(last, slowest=None, hang=None, save_failure=None, missing=())
            self._on_news(key)

    async def _poll(self, key: Key, followed: _Followed) -> Progress | None:
        try:
            async with self._in_flight, asyncio.timeout(POLL_TIMEOUT_S):
                raw = await self._ask(followed.address)
            progress = agent_status.parse(
                raw, key, followed.uid, self._wall(), followed.address, ranks=followed.ranks
            )
        except Exception:  # noqa: BLE001 - a user's program answers, and nothing that it sends may end this task
            metrics.POLLS.labels("nothing").inc()
            return None
        metrics.POLLS.labels("answer").inc()
        return progress


def _now() -> float:
    return asyncio.get_running_loop().time()


def _intervals(followed: _Followed, progress: Progress | None, now: float) -> float:
    """The pause until the next poll, in usual intervals."""
    waits = progress is not None and any(each.seconds < SILENCE_COUNTS_S for each in progress.silent_replicas)
    if waits or followed.is_newly_silent(now):
        return FAST
    return SLOW if followed.unanswered > SLOW else 1


def _urgent(progress: Progress) -> tuple[object, ...]:
    """What decides about the next fault, and what is wrong while the job trains: a change is news at once."""
    slow, hang = progress.slowest, progress.hang
    silent = [(each.replica, each.seconds >= ISOLATED_AFTER_S) for each in progress.silent_replicas]
    wrong = slow and slow.rank, hang and hang.ranks, bool(progress.save_failure)
    return progress.rejoin, progress.in_place, wrong, silent


class HttpAsk:
    """Polls over HTTP: without proxies, redirects, decompression or an unlimited answer."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=POLLS_IN_FLIGHT, force_close=True),
            timeout=aiohttp.ClientTimeout(total=POLL_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
            auto_decompress=False,  # a few bytes could become gigabytes
        )

    async def __call__(self, address: str) -> bytes:
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{names.AGENT_PORT}/status"
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise OSError(f"agent at {address} returned HTTP status {response.status}")
            raw = bytearray()
            async for chunk in response.content.iter_any():
                raw += chunk
                if len(raw) > LARGEST_ANSWER:
                    raise OSError(
                        f"the answer of the agent at {address} is larger than {LARGEST_ANSWER} bytes"
                    )
            return bytes(raw)

    async def close(self) -> None:
        await self._session.close()
