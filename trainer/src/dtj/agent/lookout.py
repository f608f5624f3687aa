"""The coordinator's eye on ranks that live: hangs and stragglers. hang.py and straggler.py judge.

    signs of all ranks -> silence -> a look at the stacks of every rank -> a verdict -> the culprits are ended
                       -> pace    -> the slowest is named

An ended culprit is a death like any other, and heals as one.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from dtj.agent.boards import Sign
from dtj.agent.hang import Look, Silence, culprits, sentence
from dtj.agent.link import Message
from dtj.agent.straggler import Pace

# An agent that has not answered by then, a second after it looked, will not.
_VERDICT_S = 5.0


class Lookout:
    """Watches the ranks of one generation after the other.

    ends   a culprit of a hang is ended; if not, it is only named
    say    tells people
    tell   tells all agents
    """

    def __init__(
        self,
        silence: Silence,
        *,
        ends: bool,
        say: Callable[[str], None],
        tell: Callable[[Message], None],
    ) -> None:
        self._silence = silence
        self._pace = Pace()
        self._ends = ends
        self._say = say
        self._tell = tell
        self._ranks = range(0)
        self._generation = 0
        self._processes = 1
        self._looks: dict[int, Look] | None = None  # while a silence is being looked into
        self._verdict_at = 0.0
        self.hang: dict[str, Any] | None = None  # one that was named, and lasts

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        return self._verdict_at if self._looks is not None else None

    @property
    def slowest(self) -> dict[str, Any] | None:
        """As in /status."""
        named = self._pace.named
        if named is None:
            return None
        return {"rank": named.rank, "replica": named.rank // self._processes, "ratio": round(named.ratio, 2)}

    def begin(self, ranks: range, now: float, *, generation: int, processes: int) -> None:
        """A generation begins; processes: ranks of a replica."""
        self._ranks, self._generation, self._processes = ranks, generation, processes
        self._looks = self.hang = None
        self._silence.begin(ranks, now)
        self._pace.begin(ranks, now)

    def ended(self, rank: int) -> None:
        """A rank of this generation is gone; nothing more is expected of it."""
        self._silence.ended(rank)

    def heard(self, rank: int, sign: Sign, now: float) -> None:
        """A rank of this generation gave a sign of life."""
        self._silence.heard(rank, sign.step, now, paused=sign.paused)
        before = self._pace.named
        self._pace.heard(rank, sign.effort, now)
        found = self._pace.named
        if found and (before is None or before.rank != found.rank):
            where = f"rank {found.rank} on replica {found.rank // self._processes}"
            self._say(f"{where} is slow: its work on a step takes {found.ratio:.1f} times that of the others")
        elif before and not found:
            self._say(f"rank {before.rank} is as fast as the others again")

    def listen(self, now: float) -> None:
        """Called now and then while the generation is whole: is it silent?"""
        silent_s = self._silence.silent_for(now)
        if self.hang and silent_s is None:
            self.hang = None
            self._say("the ranks are at work again")
        if silent_s is None or self.hang or self._looks is not None:
            return
        self._say(f"no step for {silent_s:.0f} s: the stacks of all ranks follow")
        self._looks, self._verdict_at = {}, now + _VERDICT_S
        self._tell({"look": True})

    def look(self, looks: Mapping[str, tuple[str, bool]]) -> None:
        """What an agent found where its ranks are."""
        if self._looks is None:
            return
        for rank, (frame, is_stopped) in looks.items():
            self._looks[int(rank)] = Look(frame=frame, is_stopped=is_stopped)
        if len(self._looks) == len(self._silence.ranks):
            self._judge(time.monotonic())

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self._looks is not None and now >= self._verdict_at:
            self._judge(now)

    def give_up(self) -> None:
        """The generation broke while it was looked into: whoever died was what the others waited for."""
        self._looks = self.hang = None

    def _judge(self, now: float) -> None:
        """All looks are there, or too late."""
        assert self._looks is not None
        looks = {rank: self._looks.get(rank, Look()) for rank in self._silence.ranks}
        self._looks = None
        silent_s = self._silence.silent_for(now)
        if silent_s is None:  # a step came after all
            return
        named = culprits(looks)
        deadlock = all(look.waits for look in looks.values())
        said = {r: sentence(r, looks[r], silent_s=silent_s, deadlock=deadlock) for r in named}
        if self._ends:
            self._silence.begin(
                self._ranks, now
            )  # what is known of the steps begins anew with the next generation
            self._tell({"hang": said, "generation": self._generation})
            return
        message = "; ".join(said.values())
        self._say(f"{message}; nobody is ended, as DTJ_HANG_ACTION says")
        self.hang = {"ranks": named, "message": message}
