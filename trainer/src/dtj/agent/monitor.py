"""The coordinator's eye on ranks that live: hangs and stragglers. hang.py and straggler.py judge.

    heartbeats -> silence -> stacks of every rank -> a verdict -> the culprits are ended
               -> pace    -> the slowest is named

An ended culprit is a death like any other, and heals as one.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from dtj.agent.hang import Probe, Watchdog, culprits, sentence
from dtj.agent.heartbeats import Heartbeat
from dtj.agent.link import Message
from dtj.agent.straggler import StragglerDetector

# An agent that has not answered by then, a second after it looked, will not.
_VERDICT_S = 5.0


class Monitor:
    """Watches the ranks of one generation after the other.

    ends   a culprit of a hang is ended; if not, it is only named
    say    tells people
    tell   tells all agents
    """

    def __init__(
        self,
        watchdog: Watchdog,
        *,
        ends: bool,
        say: Callable[[str], None],
        tell: Callable[[Message], None],
    ) -> None:
        self._watchdog = watchdog
        self._stragglers = StragglerDetector()
        self._ends = ends
        self._say = say
        self._tell = tell
        self._ranks = range(0)
        self._generation = 0
        self._processes = 1
        self._probes: dict[int, Probe] | None = None  # while a silence is being looked into
        self._verdict_at = 0.0
        self.hang: dict[str, Any] | None = None  # one that was named, and lasts

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        return self._verdict_at if self._probes is not None else None

    @property
    def slowest(self) -> dict[str, Any] | None:
        """As in /status."""
        named = self._stragglers.named
        if named is None:
            return None
        return {"rank": named.rank, "replica": named.rank // self._processes, "ratio": round(named.ratio, 2)}

    def begin(self, ranks: range, now: float, *, generation: int, processes: int) -> None:
        """A generation begins; processes: ranks of a replica."""
        self._ranks, self._generation, self._processes = ranks, generation, processes
        self._probes = self.hang = None
        self._watchdog.begin(ranks, now)
        self._stragglers.begin(ranks, now)

    def ended(self, rank: int) -> None:
        """A rank of this generation is gone; nothing more is expected of it."""
        self._watchdog.ended(rank)

    def observe(self, rank: int, heartbeat: Heartbeat, now: float) -> None:
        """A rank of this generation gave a sign of life."""
        self._watchdog.observe(rank, heartbeat.step, now, paused=heartbeat.paused)
        before = self._stragglers.named
        self._stragglers.observe(rank, heartbeat.busy_time, now)
        found = self._stragglers.named
        if found and (before is None or before.rank != found.rank):
            where = f"rank {found.rank} on replica {found.rank // self._processes}"
            self._say(f"{where} is slow: its work on a step takes {found.ratio:.1f} times that of the others")
        elif before and not found:
            self._say(f"rank {before.rank} is as fast as the others again")

    def check(self, now: float) -> None:
        """Called now and then while the generation is whole: is it silent?"""
        silent_s = self._watchdog.silent_for(now)
        if self.hang and silent_s is None:
            self.hang = None
            self._say("the ranks are at work again")
        if silent_s is None or self.hang or self._probes is not None:
            return
        self._say(f"no step for {silent_s:.0f} s: the stacks of all ranks follow")
        self._probes, self._verdict_at = {}, now + _VERDICT_S
        self._tell({"probe": True})

    def probed(self, probes: Mapping[str, tuple[str, bool]]) -> None:
        """What an agent found where its ranks are."""
        if self._probes is None:
            return
        for rank, (frame, is_stopped) in probes.items():
            self._probes[int(rank)] = Probe(frame=frame, is_stopped=is_stopped)
        if len(self._probes) == len(self._watchdog.ranks):
            self._judge(time.monotonic())

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self._probes is not None and now >= self._verdict_at:
            self._judge(now)

    def give_up(self) -> None:
        """The generation broke while it was looked into: whoever died was what the others waited for."""
        self._probes = self.hang = None

    def _judge(self, now: float) -> None:
        """All answers are there, or too late."""
        assert self._probes is not None
        probes = {rank: self._probes.get(rank, Probe()) for rank in self._watchdog.ranks}
        self._probes = None
        silent_s = self._watchdog.silent_for(now)
        if silent_s is None:  # a step came after all
            return
        named = culprits(probes)
        deadlock = all(probe.waits for probe in probes.values())
        said = {r: sentence(r, probes[r], silent_s=silent_s, deadlock=deadlock) for r in named}
        if self._ends:
            # What is known of the steps begins anew with the next generation.
            self._watchdog.begin(self._ranks, now)
            self._tell({"hang": said, "generation": self._generation})
            return
        message = "; ".join(said.values())
        self._say(f"{message}; nobody is ended, as DTJ_HANG_ACTION says")
        self.hang = {"ranks": named, "message": message}
