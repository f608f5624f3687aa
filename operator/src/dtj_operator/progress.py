"""Polls the agent of replica 0 of each running job and keeps its last answer.

An agent is optional: a pod that does not answer is polled less often. An agent that answered and then stops
answering, or that is waiting for another replica, is polled more often, because a node may be lost. The
answers come from a user's program: this module limits their size and time, `agent_status.py` checks their
values. `reconcile.py` says which pods to poll.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
from msgspec.structs import replace

from dtj_operator import metrics
from dtj_operator.engine.turns import Turns
from dtj_operator.model import agent_status, names
from dtj_operator.model.agent_status import Progress, Unheard
from dtj_operator.model.names import Key
from dtj_operator.plan import isolation
from dtj_operator.plan.snapshot import SILENCE_COUNTS_S, Silence

POLLS_IN_FLIGHT = 128  # many, because a zone full of agents that do not answer must not delay the others
POLL_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 1.0
LARGEST_ANSWER = 256 * 1024  # bytes; the agent's document has at most 1,000 ranks
SLOW = 6  # after this many unanswered polls in a row, poll this many times less often
FAST = 0.5  # of the usual interval, while a node may be lost
STOPPED_S = 20.0  # an answer that did not change for so long is none: the agent renews it 4 times a second
ASK_OTHERS_AFTER_S = 90.0  # of silence, so that after ISOLATED_AFTER_S it is known what the others hear
HEARD_S = 60.0  # an agent that heard replica 0's within this time still hears it
SILENT_AFTER = 2  # unanswered polls in a row of an agent that answered before; a single poll may get lost

Ask = Callable[[str], Awaitable[bytes]]


@dataclass
class _Followed:
    uid: str
    attempt: int
    address: str
    ranks: int
    has_answered: bool
    others: Mapping[int, str]  # addresses of other agents, by replica
    answered_at: float  # when it last answered, or when polling started
    unanswered: int = 0  # polls in a row
    said: Mapping[int, Unheard] = field(default_factory=dict)  # by the others when they were last asked
    unheard_since: float | None = None  # see Silence
    is_heard: bool = False
    marked: str | None = None  # when the last answer was made, by the agent's clock, which is only compared
    marked_at: float = 0.0  # when that was first seen
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def is_silent_for(self, seconds: float, now: float) -> bool:
        """Whether it answered before and stopped at least so long ago."""
        return self.has_answered and self.unanswered > 0 and now - self.answered_at >= seconds

    def is_outdated(self, mark: str | None, now: float) -> bool:
        """Whether the agent is stopped: another process of its pod repeats its last answer."""
        if mark is None or mark != self.marked:
            self.marked, self.marked_at = mark, now
        return mark is not None and now - self.marked_at >= STOPPED_S

    def hear(self, said: Mapping[int, Unheard], *, asked: int, now: float) -> None:
        """Note what other agents say about replica 0's; one that is stopped itself repeats what it said.

        asked  how many were asked
        """
        new = {i: each for i, each in said.items() if (old := self.said.get(i)) and old.at != each.at}
        self.said = said
        silent_s = [each.seconds for each in new.values() if each.seconds >= isolation.ISOLATED_AFTER_S]
        self.is_heard = any(each.seconds < HEARD_S for each in new.values())
        agree = not self.is_heard and 2 * len(silent_s) > asked
        self.unheard_since = now - min(silent_s) if agree else None

    def forget_silence(self) -> None:
        self.said, self.unheard_since, self.is_heard = {}, None, False


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
        self,
        key: Key,
        uid: str,
        attempt: int,
        address: str,
        *,
        ranks: int = 1,
        has_answered: bool = False,
        others: Mapping[int, str] | None = None,
    ) -> None:
        """Poll this address until `stop` or another `follow`.

        ranks         of the job at most; an answer that names more is not believed
        has_answered  the agent answered in this attempt before this process started to poll it
        others        addresses of agents, by replica, that are asked if this one is silent for long
        """
        known, others = self._followed.get(key), others or {}
        if known is not None and (known.uid, known.attempt, known.address) == (uid, attempt, address):
            known.others = others
            return
        self.stop(key)
        followed = _Followed(uid, attempt, address, ranks, has_answered, others, answered_at=_now())
        self._followed[key] = followed
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

    def silence(self, key: Key, uid: str, attempt: int) -> Silence | None:
        """Since when the polled agent has been silent, if it answered in this attempt; wall-clock times."""
        known = self._followed.get(key)
        if known is None or (known.uid, known.attempt) != (uid, attempt):
            return None
        if not known.has_answered or known.unanswered < SILENT_AFTER:
            return None
        wall, unheard = self._wall() - _now(), known.unheard_since
        return Silence(
            since=wall + known.answered_at,
            unheard_since=None if unheard is None else wall + unheard,
            is_heard=known.is_heard,
        )

    def may_write(self, key: Key) -> bool:
        """Whether it is this job's turn to have its progress written, although nothing else changed."""
        return self._turns.has(key)

    def note_written(self, key: Key, progress: Progress | None) -> None:
        """Note that the stored status has this answer; None: the job had not answered when it was read."""
        if progress is not None:
            self._turns.done(key)

    def number(self, *, silent: bool) -> int:
        """How many of the polled agents left the last poll unanswered, or else how many did not."""
        return sum((each.unanswered > 0) == silent for each in self._followed.values())

    async def close(self) -> None:
        self._turns.close()
        tasks = [followed.task for followed in self._followed.values() if followed.task is not None]
        for key in list(self._followed):
            self.stop(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, key: Key, followed: _Followed) -> None:
        while True:
            progress = await self._poll(key, followed)
            metrics.POLLS.labels("nothing" if progress is None else "answer").inc()
            if progress is None:
                self._note_unanswered(key, followed)
                await self._ask_others(key, followed)
            else:
                self._note_answered(key, followed)
            if progress is not None and progress.attempt == followed.attempt:
                followed.has_answered = True
                last = self.last(key, followed.uid, followed.attempt)
                self._last[key] = followed.uid, progress
                if last is None or _urgent(last) != _urgent(progress):
                    self._on_news(key)
                if last is None or progress.step is not None:  # an old step too: the status says how old
                    self._turns.ask(key)
            await asyncio.sleep(self._poll_s * _intervals(followed, progress, _now()))

    def _note_unanswered(self, key: Key, followed: _Followed) -> None:
        followed.unanswered += 1
        if followed.has_answered and followed.unanswered == SILENT_AFTER:
            self._on_news(key)
        if followed.unanswered == SLOW:
            self._clear_reported(key)

    def _note_answered(self, key: Key, followed: _Followed) -> None:
        if followed.is_silent_for(isolation.ISOLATED_AFTER_S, _now()):
            self._on_news(key)
        followed.forget_silence()
        followed.unanswered, followed.answered_at = 0, _now()

    async def _ask_others(self, key: Key, followed: _Followed) -> None:
        """Ask other agents whether they hear the one that has been silent for long."""
        if not followed.is_silent_for(ASK_OTHERS_AFTER_S, _now()):
            return
        known = followed.unheard_since is None, followed.is_heard
        asked = dict(followed.others)
        answers = await asyncio.gather(
            *(self._unheard(key, followed, index, address) for index, address in asked.items())
        )
        said = {i: answer for i, answer in zip(asked, answers, strict=True) if answer is not None}
        followed.hear(said, asked=len(asked), now=_now())
        if known != (followed.unheard_since is None, followed.is_heard):
            self._on_news(key)

    async def _unheard(self, key: Key, followed: _Followed, replica: int, address: str) -> Unheard | None:
        try:
            async with self._in_flight, asyncio.timeout(POLL_TIMEOUT_S):
                raw = await self._ask(address)
            return agent_status.parse_other(raw, key, followed.uid, followed.attempt, replica)
        except Exception:  # noqa: BLE001 - as in _poll
            return None

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
            return None
        return None if followed.is_outdated(progress.at, _now()) else progress


def _now() -> float:
    return asyncio.get_running_loop().time()


def _intervals(followed: _Followed, progress: Progress | None, now: float) -> float:
    """The pause until the next poll, in usual intervals."""
    waits = progress is not None and any(each.seconds < SILENCE_COUNTS_S for each in progress.silent_replicas)
    newly_silent = followed.is_silent_for(0, now) and not followed.is_silent_for(SILENCE_COUNTS_S, now)
    if waits or newly_silent:
        return FAST
    return SLOW if followed.unanswered > SLOW else 1


def _urgent(progress: Progress) -> tuple[object, ...]:
    """What decides about the next fault, and what is wrong while the job trains: a change is news at once."""
    slow, hang = progress.slowest, progress.hang
    silent = [(each.replica, each.seconds >= isolation.ISOLATED_AFTER_S) for each in progress.silent_replicas]
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
