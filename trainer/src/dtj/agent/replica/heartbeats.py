"""Reads the heartbeats of this pod's ranks from shared memory and reports what changed."""

import time
from collections.abc import Iterable

from dtj.agent.rank.process import RankProcess
from dtj.agent.replica.activity import ActivityReader
from dtj.agent.wire.link import pace_s
from dtj.agent.wire.signs import Heartbeat

# Rank 0 often enough to see every step; other ranks only to see that they are alive.
_RANK_0_S = 0.05
_OTHERS_S = 0.25


def interval_s(agents: int, *, of_rank_0: bool) -> float:
    """Seconds between two messages about the heartbeats of a pod's ranks."""
    return _RANK_0_S if of_rank_0 else pace_s(agents, least_s=_OTHERS_S)


class HeartbeatReader:
    """Remembers the last heartbeat of each process.

    every_s   seconds between two reads, see `interval_s`
    activity  reads the activity of processes without a step
    """

    def __init__(self, *, every_s: float) -> None:
        self.activity = ActivityReader()
        self._every_s = every_s
        self._stepped_at: dict[int, float] = {}
        self._last_read: dict[int, tuple[int, int, float | None]] = {}  # by pid
        self.step_s = 0.0  # duration of the last step
        self.deadline = time.monotonic() + self._every_s

    def tick(self, processes: Iterable[RankProcess]) -> dict[int, Heartbeat]:
        """If a poll is due: the new heartbeats."""
        now = time.monotonic()
        if now < self.deadline:
            return {}
        self.deadline = now + self._every_s
        return self.read_all(processes)

    def read_all(self, processes: Iterable[RankProcess]) -> dict[int, Heartbeat]:
        """The new heartbeats since the last read."""
        return {process.rank: beat for process in processes if (beat := self.read(process))}

    def read(self, process: RankProcess) -> Heartbeat | None:
        """The rank's heartbeat; None if nothing is new."""
        heartbeat = process.heartbeat
        current = (heartbeat.step if heartbeat.step is not None else -1, heartbeat.signs, heartbeat.pause_s)
        if self._last_read.get(process.pid, (-1, 0, None)) == current:
            return None
        before = self._last_read.get(process.pid, current)
        if before[0] >= 0 and current[0] > before[0]:
            stepped_at = self._stepped_at.get(process.pid, heartbeat.stepped_at)
            self.step_s = (heartbeat.stepped_at - stepped_at) / (current[0] - before[0])
        self._stepped_at[process.pid] = heartbeat.stepped_at
        self._last_read[process.pid] = current
        return Heartbeat(
            process.generation,
            heartbeat.step,
            heartbeat.pause_s,
            heartbeat.busy_time,
            heartbeat.stepped_at,
            heartbeat.is_counted,
        )

    def forget(self, process: RankProcess) -> None:
        """Report its state, a pause for instance, again from the start."""
        self._last_read.pop(process.pid, None)
        self.activity.forget(process)
