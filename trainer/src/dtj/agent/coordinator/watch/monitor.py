"""Finds hangs and stragglers among live ranks, for the coordinator; hang.py, verdict.py, straggler.py decide.

    heartbeats -> silence   -> two samples of every rank -> a verdict -> the culprits are killed and restarted
               -> busy time -> the straggler is named

The looks are requested shortly before the silence reaches its limit, and dropped if it ends in time. A
culprit that is at work is left alone for some time, and examined again. A killed culprit is healed like any
other dead rank.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dtj import contract
from dtj.agent.coordinator.watch.hang import Watchdog
from dtj.agent.coordinator.watch.straggler import StragglerDetector
from dtj.agent.coordinator.watch.verdict import (
    Verdict,
    describe,
    describe_all,
    judge,
    judge_before_first_step,
)
from dtj.agent.wire.link import Message
from dtj.agent.wire.probe import Probe
from dtj.agent.wire.signs import Activity, Heartbeat

# A rank that uses CPU, reads, writes or polls is left alone for this long, unless the user sets another time.
WORKING_S = 900.0
# Stacks take a second to write, on a busy machine up to ten, twice. An agent that is alive answers within
# this time after the time between the looks; one that is not is silent by then, and is treated as away.
_ANSWER_S = 25.0
# Of the time before the verdict, what is left for other things than the time between the looks.
_STACKS_S = 3.0
_SHORTEST_LOOKS_S = 0.5


class Monitor:
    """Watches the ranks of one generation after the other.

    restarts   kill the culprits of a hang, so that they are restarted; else only name them
    working_s  a rank that is at work is treated as hung only after this time without a step
    log        writes a line for the user
    broadcast  sends a message to all agents
    tell_each  sends to each agent the message for its ranks
    """

    def __init__(
        self,
        watchdog: Watchdog,
        *,
        restarts: bool,
        log: Callable[[str], None],
        broadcast: Callable[[Message], None],
        tell_each: Callable[[Callable[[range], Message]], None],
        working_s: float | None = None,
    ) -> None:
        self._watchdog = watchdog
        self._stragglers = StragglerDetector()
        self._restarts = restarts
        self._working_s = WORKING_S if working_s is None else working_s
        self._log = log
        self._broadcast = broadcast
        self._tell_each = tell_each
        self._ranks = range(0)
        self._generation = 0
        self._processes = 1
        self._number = 0  # of the last examination
        self._probes: dict[int, Probe] | None = None  # while a silence is being examined
        self._answer_by = 0.0
        self._paths: dict[int, int] = {}  # of the ranks at the last judgement in this silence
        self._moved: set[int] = set()  # ranks whose path has changed in this silence
        self._say_again_at = 0.0  # seconds of silence; 0 if no rank was said to be at work in this silence
        self.hang: dict[str, Any] | None = None  # a hang that was only named, while it lasts

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        due = None if self.hang else self._watchdog.due
        if due is None or self._probes is None:
            return due and due.probe_at
        return due.judge_at if self._has_answers else max(due.judge_at, self._answer_by)

    @property
    def slowest(self) -> dict[str, Any] | None:
        """As in /status."""
        named = self._stragglers.named
        if named is None:
            return None
        return {"rank": named.rank, "replica": named.rank // self._processes, "ratio": round(named.ratio, 2)}

    @property
    def startup_s(self) -> float:
        """The longest from the start of a generation to the first step of a rank."""
        return self._watchdog.startup_s

    @startup_s.setter
    def startup_s(self, seconds: float) -> None:
        self._watchdog.startup_s = seconds

    def start_generation(self, ranks: range, now: float, *, generation: int, processes: int) -> None:
        """A generation starts; processes: ranks per replica."""
        self._ranks, self._generation, self._processes = ranks, generation, processes
        self._probes = self.hang = None
        self._forget_silence()
        self._watchdog.start_generation(ranks, now)
        self._stragglers.start_generation(ranks, now)

    def excuse(self, now: float) -> None:
        """Heartbeats may have been lost: measure silence and pace from now on."""
        self._watchdog.excuse(now)
        self._stragglers.excuse(now)

    def ended(self, rank: int) -> None:
        """A rank of this generation exited; expect no more heartbeats from it."""
        self._watchdog.ended(rank)

    def observe(self, rank: int, heartbeat: Heartbeat, now: float) -> None:
        """A rank of this generation sent a heartbeat."""
        self._end_silence(now)
        self._watchdog.observe(rank, heartbeat.step, now, pause_s=heartbeat.pause_s)
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

    def probed(self, number: int, probes: Mapping[int, Probe]) -> None:
        """An agent sent the probes of its ranks; `number` says for which examination."""
        if self._probes is None or number != self._number:
            return
        self._probes |= {rank: probe for rank, probe in probes.items() if rank in self._watchdog.ranks}

    def tick(self, now: float, *, leaving: Sequence[int] = ()) -> list[int]:
        """Time has passed while the generation is formed; return the ranks that are killed now.

        leaving  ranks whose pod was asked to terminate
        """
        due = None if self.hang else self._watchdog.due
        if due is None or now < due.probe_at:  # a heartbeat came in time
            self._probes = None
        elif self._probes is None:
            looks_s = max(_SHORTEST_LOOKS_S, due.judge_at - due.probe_at - _STACKS_S)
            self._probes, self._number = {}, self._number + 1
            self._answer_by = now + looks_s + _ANSWER_S
            self._broadcast({"probe": self._number, "looks_s": looks_s})
        elif now >= due.judge_at and (self._has_answers or now >= self._answer_by):
            return self._judge(now, leaving)
        return []

    def cancel_probe(self) -> None:
        """The generation broke during a probe: the ranks waited for the one that died."""
        self._probes = self.hang = None

    @property
    def _has_answers(self) -> bool:
        return self._probes is not None and len(self._probes) >= len(self._watchdog.ranks)

    def _clear_hang(self, now: float) -> None:
        if self.hang and self._watchdog.silent_for(now) is None:
            self.hang = None
            self._log("the hang is over: the ranks make progress again")

    def _end_silence(self, now: float) -> None:
        if self._say_again_at:
            self._log(f"the ranks continue after {now - self._watchdog.newest:.0f} s")
        if self._say_again_at or self._paths:
            self._forget_silence()

    def _forget_silence(self) -> None:
        self._paths, self._moved, self._say_again_at = {}, set(), 0.0

    def _judge(self, now: float, leaving: Sequence[int]) -> list[int]:
        probes = self._with_earlier_looks(
            {r: (self._probes or {}).get(r, Probe()) for r in self._watchdog.ranks}
        )
        self._probes = None
        silent_s = self._watchdog.silent_for(now)
        assert silent_s is not None  # it is due
        is_overdue = any(self._watchdog.is_overdue(rank, now) for rank in probes)
        has_ended = self._watchdog.has_ended
        if self._watchdog.is_before_first_step and not is_overdue:
            is_early = silent_s < self._watchdog.inactive_limit_s
            verdict = judge_before_first_step(
                probes, silent_s=silent_s, is_early=is_early, has_ended=has_ended
            )
            if not verdict.culprits:
                (self._watchdog.look_again if is_early else self._watchdog.excuse)(now)
                return []
        else:
            verdict = judge(probes, has_ended=has_ended)
            may_be_long = not verdict.is_stopped and silent_s < self._watchdog.long_limit_s
            if may_be_long or now - self._watchdog.since < verdict.patience * self._working_s:
                self._leave_alone(verdict, probes, now)
                return []
        return self._act(verdict, probes, now, leaving)

    def _with_earlier_looks(self, probes: dict[int, Probe]) -> dict[int, Probe]:
        for rank, probe in probes.items():
            path = probe.place.path
            if probe.moved or self._paths.setdefault(rank, path) != path:
                self._moved.add(rank)
        return {rank: replace(probe, moved=rank in self._moved) for rank, probe in probes.items()}

    def _leave_alone(self, verdict: Verdict, probes: Mapping[int, Probe], now: float) -> None:
        """A rank is at work: say so; or steps have taken longer. Look again after another limit."""
        self._watchdog.look_again(now)
        silent_s, rank = now - self._watchdog.newest, verdict.working
        if rank is None or silent_s < self._say_again_at:
            return
        self._say_again_at = 2 * silent_s
        waits = "; the other ranks wait for it" if len(probes) > len(verdict.culprits) else ""
        most_s = self._watchdog.since - self._watchdog.newest + verdict.patience * self._working_s
        most_s = max(most_s, self._watchdog.long_limit_s)
        self._log(
            f"no step for {silent_s:.0f} s: {describe(rank, probes[rank])}{waits}. It counts as work until "
            f"{most_s:.0f} s without a step (spec.hang.workingSeconds, {contract.HANG_WORKING_SECONDS})"
        )

    def _act(
        self, verdict: Verdict, probes: Mapping[int, Probe], now: float, leaving: Sequence[int]
    ) -> list[int]:
        silence = self._silence(now)
        self._log(f"{silence}: the stacks of all ranks follow")
        messages = {rank: f"{silence}: {describe(rank, probes[rank])}" for rank in verdict.culprits}
        if verdict.is_shared:
            what = describe_all(probes, has_ended=self._watchdog.has_ended, leaving=leaving)
            messages = dict.fromkeys(messages, f"{silence}: {what}")
            if self._restarts:  # a culprit would be named when it has ended
                self._log(messages[verdict.culprits[0]])
        else:
            messages |= {
                rank: f"{text}; the pause that it declared is over its limit"
                for rank, text in messages.items()
                if self._watchdog.is_overdue(rank, now)
            }
        killed = messages if self._restarts else {}
        common = {"generation": self._generation, "is_shared": verdict.is_shared}
        self._tell_each(lambda ranks: {"hang": {r: killed[r] for r in ranks if r in killed}} | common)
        if self._restarts:
            # Forget the heartbeats: the next generation starts with new ones.
            self._watchdog.start_generation(self._ranks, now)
            self._forget_silence()
            return list(verdict.culprits)
        message = "; ".join(dict.fromkeys(messages.values()))
        self._log(f"{message}; not restarting any rank because DTJ_HANG_ACTION=Report")
        ranks = [] if verdict.is_shared else list(verdict.culprits)
        self.hang = {"ranks": ranks, "message": message}
        return []

    def _silence(self, now: float) -> str:
        silent_s = now - self._watchdog.newest
        if self._watchdog.is_before_first_step:
            return f"no step yet and no activity for {silent_s:.0f} s"
        return f"no step for {silent_s:.0f} s"
