"""Finds hangs and stragglers among live ranks, for the coordinator. hang.py and straggler.py decide.

    heartbeats -> silence   -> stacks of every rank -> a verdict -> the culprits are killed and restarted
               -> busy time -> the straggler is named

The stacks are requested shortly before the silence reaches its limit, and dropped if it ends in time. A
killed culprit is healed like any other dead rank.
"""

from collections.abc import Callable, Mapping
from typing import Any

from dtj.agent.activity import Activity
from dtj.agent.hang import Probe, Watchdog, culprits, culprits_before_first_step, describe_hang
from dtj.agent.heartbeats import Heartbeat
from dtj.agent.link import Message
from dtj.agent.straggler import StragglerDetector

# Stacks take a second to write; an agent that has not answered by then will not answer.
_ANSWER_S = 5.0


class Monitor:
    """Watches the ranks of one generation after the other.

    restarts   kill the culprits of a hang, so that they are restarted; else only name them
    log        writes a line for the user
    broadcast  sends a message to all agents
    """

    def __init__(
        self,
        watchdog: Watchdog,
        *,
        restarts: bool,
        log: Callable[[str], None],
        broadcast: Callable[[Message], None],
    ) -> None:
        self._watchdog = watchdog
        self._stragglers = StragglerDetector()
        self._restarts = restarts
        self._log = log
        self._broadcast = broadcast
        self._ranks = range(0)
        self._generation = 0
        self._processes = 1
        self._probes: dict[int, Probe] | None = None  # while a silence is being examined
        self._probed_at = 0.0
        self.hang: dict[str, Any] | None = None  # a hang that was only named, while it lasts

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        due = None if self.hang else self._watchdog.due
        if due is None or self._probes is None:
            return due and due[0]
        return due[1] if self._has_answers else max(due[1], self._probed_at + _ANSWER_S)

    @property
    def slowest(self) -> dict[str, Any] | None:
        """As in /status."""
        named = self._stragglers.named
        if named is None:
            return None
        return {"rank": named.rank, "replica": named.rank // self._processes, "ratio": round(named.ratio, 2)}

    def start_generation(self, ranks: range, now: float, *, generation: int, processes: int) -> None:
        """A generation starts; processes: ranks per replica."""
        self._ranks, self._generation, self._processes = ranks, generation, processes
        self._probes = self.hang = None
        self._watchdog.start_generation(ranks, now)
        self._stragglers.start_generation(ranks, now)

    def excuse(self, now: float) -> None:
        """Heartbeats may have been lost: measure the silence from now on."""
        self._watchdog.excuse(now)

    def ended(self, rank: int) -> None:
        """A rank of this generation exited; expect no more heartbeats from it."""
        self._watchdog.ended(rank)

    def observe(self, rank: int, heartbeat: Heartbeat, now: float) -> None:
        """A rank of this generation sent a heartbeat."""
        self._watchdog.observe(rank, heartbeat.step, now, paused=heartbeat.paused)
        self._clear_hang(now)
        before = self._stragglers.named
        self._stragglers.observe(rank, heartbeat.busy_time, now)
        found = self._stragglers.named
        if found and (before is None or before.rank != found.rank):
            where = f"rank {found.rank} on replica {found.rank // self._processes}"
            work = f"its own work per step takes {found.ratio:.1f} times as long as that of the other ranks"
            self._log(f"straggler: {where}: {work}")
        elif before and not found:
            self._log(f"straggler recovered: rank {before.rank} is as fast as the other ranks again")

    def observe_activity(self, rank: int, activity: Activity, now: float) -> None:
        """A rank of this generation without a step yet was active."""
        self._watchdog.observe_activity(rank, now, is_stopped=activity.is_stopped)
        self._clear_hang(now)

    def probed(self, probes: Mapping[str, tuple[str, bool, float]]) -> None:
        """An agent sent the probes of its ranks."""
        if self._probes is None:
            return
        for rank, (frame, is_stopped, asleep_s) in probes.items():
            self._probes[int(rank)] = Probe(frame=frame, is_stopped=is_stopped, asleep_s=asleep_s)

    def tick(self, now: float) -> list[int]:
        """Time has passed while the generation is formed; return the ranks that are killed now."""
        due = None if self.hang else self._watchdog.due
        if due is None or now < due[0]:  # a heartbeat came in time
            self._probes = None
        elif self._probes is None:
            self._probes, self._probed_at = {}, now
            self._broadcast({"probe": True})
        elif now >= due[1] and (self._has_answers or now >= self._probed_at + _ANSWER_S):
            return self._judge({rank: self._probes.get(rank, Probe()) for rank in self._watchdog.ranks}, now)
        return []

    def cancel_probe(self) -> None:
        """The generation broke during a probe: the ranks waited for the one that died."""
        self._probes = self.hang = None

    @property
    def _has_answers(self) -> bool:
        return self._probes is not None and self._watchdog.ranks <= self._probes.keys()

    def _clear_hang(self, now: float) -> None:
        if self.hang and self._watchdog.silent_for(now) is None:
            self.hang = None
            self._log("the hang is over: the ranks make progress again")

    def _judge(self, probes: Mapping[int, Probe], now: float) -> list[int]:
        self._probes = None
        silent_s = self._watchdog.silent_for(now)
        assert silent_s is not None  # it is due
        silence, named = f"no step for {silent_s:.0f} s", culprits(probes)
        if self._watchdog.is_before_first_step:
            silence = f"no step yet and no activity for {silent_s:.0f} s"
            named = culprits_before_first_step(probes, silent_s=silent_s)
        if not named:
            self._watchdog.excuse(now)
            return []
        self._log(f"{silence}: the stacks of all ranks follow")
        deadlock = all(probe.waits for probe in probes.values())
        messages = {r: describe_hang(r, probes[r], silence=silence, deadlock=deadlock) for r in named}
        if self._restarts:
            # Forget the heartbeats: the next generation starts with new ones.
            self._watchdog.start_generation(self._ranks, now)
            self._broadcast({"hang": messages, "generation": self._generation})
            return named
        self._broadcast({"hang": {}, "generation": self._generation})
        message = "; ".join(messages.values())
        self._log(f"{message}; not restarting any rank because DTJ_HANG_ACTION=Report")
        self.hang = {"ranks": named, "message": message}
        return []
