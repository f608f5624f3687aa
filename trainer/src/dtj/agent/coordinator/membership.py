"""Who is in which generation, and what follows from a loss: the coordinator's decisions. Pure.

    facts from the agents (join, leave, ready, ended, ...)  ->  actions that coordinator.py carries out

    gathering --all replicas have joined--> formed --a rank fails--> formed again, as the next generation
        ^                                     |
        +----------- a replica is lost -------+---- all ranks done, or no restart left ----> over

A connection that breaks, or is silent, says nothing about the ranks behind it. The replica is then *away*,
and its generation continues. The agent's next hello tells what its ranks did meanwhile. It is lost if

    - another incarnation joins in its place (its pod was replaced), or its ranks are of another generation
    - a rank elsewhere fails or loses its peers, and the replica is not back within CAUSE_WAIT_S
    - the job is elastic, and the replica is away for SHRINK_DELAY_S
    - its pod was asked to terminate before it left

Forming keeps ranks that hold the run in memory (`healable`) and restarts the others. If no rank holds it, all
ranks restart and resume from the newest checkpoint. `now` is seconds of a monotonic clock.
"""

from collections.abc import Set
from dataclasses import dataclass, field, replace

from dtj import contract
from dtj.agent.coordinator.restarts import Restarts, row_of
from dtj.agent.coordinator.sizing import RESIZE_DELAY_S, SHRINK_DELAY_S, size
from dtj.agent.wire.buddies import choose_shift
from dtj.agent.wire.outcome import Ending, first_cause
from dtj.agent.wire.protocol import (
    CONNECT_S,
    Action,
    CoordinatorState,
    End,
    Form,
    Go,
    Hello,
    Job,
    Refuse,
    Say,
)

# Time to wait, after a rank "lost a peer", for the failure that caused it.
CAUSE_WAIT_S = 5.0
# After a replica was silent: time for the next step, which shows that the ranks reach each other.
PROOF_S = 5.0
# Before a failure ends the job: time to hear of an earlier one, from another replica or a slowly dying rank.
VERDICT_S = 0.5
# The machines may be slow: ranks that did not connect in time get twice the time, up to this limit.
LONGEST_CONNECT_S = 240.0
# Every rank connects to every other, so that a large job needs more time.
_RANKS_PER_S = 25
ENDED_EARLY = "ended without a failure while other ranks still needed it"


@dataclass(kw_only=True)
class Membership:
    """Every method takes one fact; those after which an action may be due at once return the actions."""

    job: Job
    restarts: Restarts
    state: CoordinatorState = field(default_factory=CoordinatorState)
    agents: dict[int, str] = field(default_factory=dict)  # replica -> incarnation
    failure: Ending | None = None  # the last one that was healed
    failed_in: int = 0  # generation of the failure
    is_formed: bool = False
    is_over: bool = False
    culprit: Ending | None = None  # of a job that is over
    ended_early: list[int] = field(default_factory=list)  # ranks without which the others could not continue
    stopping: set[int] = field(default_factory=set)  # replicas whose pod was asked to terminate
    cannot_save: bool = False  # rank 0 failed to write to the checkpoint folder when it last tried
    _healable: set[int] = field(default_factory=set)
    _newest: int = 0  # generation that any rank is or was of; the next one has a higher number
    _ready: set[int] = field(default_factory=set)
    _kept: frozenset[int] = frozenset()
    _done: dict[int, Ending] = field(default_factory=dict)  # without a failure: with code 0, or stopped
    _absent: dict[int, Ending] = field(default_factory=dict)  # of these, ranks that were never ready
    _gone: set[int] = field(default_factory=set)
    _replaced: set[str] = field(default_factory=set)
    _pods: dict[int, int] = field(default_factory=dict)  # replica -> `restarts` of its newest pod, see Hello
    _machines: dict[int, str] = field(default_factory=dict)  # replica -> machine of its newest pod
    _incident: dict[int, Ending] = field(default_factory=dict)  # failures of this generation, by rank
    _has_cause: bool = False  # one of them is more than a lost peer
    _last_cause: Ending | None = None  # of the failures of the generation before, which may still arrive
    _failing: dict[int, Ending] = field(default_factory=dict)  # reported a failure and have not exited yet
    _decide_at: float | None = None
    _waited_for_verdict: bool = False  # VERDICT_S has been granted for an earlier failure to arrive
    _away: dict[int, str] = field(default_factory=dict)  # replica -> incarnation whose ranks may be alive
    _silent: set[int] = field(default_factory=set)  # of these, without a sign that the connection broke
    _step_due: float | None = None  # a silent replica is back: a step by then shows that all is well
    _stepped_at: float | None = None
    _step_s: float = 0.0  # duration of the last step
    _is_unformed: bool = False  # some rank did not reach its peers in this generation
    _left: set[int] = field(default_factory=set)  # replicas whose pod was asked to terminate and is gone
    _left_done: set[int] = field(default_factory=set)  # likewise, once all their ranks were done
    _resize_at: float | None = None
    _shrink_at: float | None = None
    _missing_since: dict[int, float] = field(default_factory=dict)  # in an elastic job
    _backoff_ends: float | None = None  # no generation is formed before
    _lost_at: dict[int, float] = field(default_factory=dict)  # replicas that took part and are missing now

    @property
    def missing(self) -> list[int]:
        """Replicas that have not joined, and that the job still needs."""
        here = self.agents.keys() | self._left_done
        return [replica for replica in range(self.job.replicas) if replica not in here]

    @property
    def restarts_before_newest(self) -> int | None:
        """Restarts of the job before the newest pod that has joined was created; see Hello."""
        return max(self._pods.values(), default=None)

    @property
    def leaving(self) -> list[int]:
        """Ranks whose pod was asked to terminate."""
        return [rank for replica in sorted(self.stopping) for rank in self.job.ranks_of(replica)]

    @property
    def keeps_run(self) -> bool:
        """A new size of the job does not cost the steps so far."""
        return self.job.saves and not self.cannot_save

    @property
    def unfit(self) -> int | None:
        """The size that the connected replicas form, if --mesh fits none between the present one and it."""
        limits, size = self.job.limits, self.job.replicas
        here = next(i for i in range(self.job.most + 1) if i not in self.agents)
        return here if limits and here > size >= (limits.largest(here) or 0) else None

    def waited_for(self, now: float) -> dict[int, float]:
        """Replicas that took part and are missing, and for how many seconds.

        Those that the job continues without are included, unless they were asked to terminate.
        """
        if self.is_over:
            return {}
        gone = {i for i in self._left if i >= self.job.replicas}
        return {i: now - at for i, at in sorted(self._lost_at.items()) if i not in self.agents.keys() | gone}

    def state_of(self, rank: int) -> str:
        """Running, Done or Failed, in the present generation."""
        if rank not in self._gone:
            return "Running"
        return "Done" if rank in self._done else "Failed"

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        if self.is_over:
            return None
        times = (self._decide_at, self._resize_at, self._shrink_at, self._step_due, self._backoff_ends)
        return min((at for at in times if at is not None), default=None)

    @property
    def away(self) -> Set[int]:
        """Replicas of this generation that are not connected at present."""
        return self._away.keys()

    def join(self, hello: Hello, now: float) -> list[Action]:
        """An agent asks to join, for the first time or again; it replaces an older agent of its replica."""
        refusal = self._refusal(hello)
        if refusal:
            return [refusal]
        if self._can_resume(hello):
            return self._resume(hello, now)
        actions: list[Action] = []
        older = self.agents.get(hello.replica) or self._away.get(hello.replica)
        if older and older != hello.incarnation:
            self._replaced.add(older)
            if hello.replica in self.agents:
                actions.append(Refuse(older, "a newer pod has replaced it", for_good=True))
        self._lose(hello.replica, now)
        self._left.discard(hello.replica)
        self._admit(hello)
        if hello.state.generation > self.state.generation:
            self._take_over(hello.state, now)
        elif hello.state.generation == 0:  # a new pod; the operator may have counted the loss of the old one
            row = max(self.state.without_progress, hello.state.without_progress)
            self.state = replace(self.state, without_progress=row)
            if hello.allowed is not None and hello.restarts >= max(self._pods.values()):  # of the newest pod
                self.restarts.allow(hello.allowed, self.state, now)
        self._schedule_resize(now)
        return actions + self._form()

    def _take_over(self, theirs: CoordinatorState, now: float) -> None:
        """What an agent remembers of an earlier coordinator."""
        # Our in_place comes from the operator, and covers agents that are gone; theirs is what they saw.
        healed = max(self.state.in_place, theirs.in_place)
        self.restarts.remember(healed - self.state.in_place, now)
        row = max(self.state.without_progress, theirs.without_progress)
        steps = (self.state.best_step, theirs.best_step)
        best = max((step for step in steps if step is not None), default=None)
        known, ours = replace(theirs, in_place=healed, without_progress=row, best_step=best), self.state
        if self.is_formed:  # it came too late to be part of this generation, which continues
            known = replace(known, generation=ours.generation, replicas=ours.replicas, shift=ours.shift)
        elif self.job.limits and theirs.replicas:
            self.job = replace(self.job, replicas=min(self.job.replicas, theirs.replicas))
        self.state = known
        for replica in self.missing:  # all of these were part of that generation
            self._lost_at.setdefault(replica, now)

    def leave(self, incarnation: str, now: float, *, silent: bool = False) -> None:
        """An agent's connection is gone; its ranks may be alive.

        silent  no message came for long, so that its ranks may not reach the others either
        """
        for replica in [r for r, i in self.agents.items() if i == incarnation]:
            if self._leaves_done(replica):
                del self.agents[replica]
                self.stopping.discard(replica)
                self._left_done.add(replica)
                continue
            if not self.is_formed or replica in self.stopping or replica >= self.job.replicas:
                self._lose(replica, now)
                continue
            self._away[replica] = self.agents.pop(replica)
            self._lost_at[replica] = now
            if silent:
                self._silent.add(replica)
            self._schedule_resize(now)

    def hold(self, rank: int, *, holds: bool) -> None:
        """Whether a rank holds the run in memory and can join a new generation without a restart."""
        if not holds:
            self._healable.discard(rank)
        elif rank in self._ready:  # else it comes from a process that this generation replaces
            self._healable.add(rank)

    def ready(self, rank: int, generation: int, now: float) -> list[Action]:
        """A rank waits until its generation is complete."""
        if generation != self.state.generation or not self.is_formed or self.is_over:
            return []
        self._ready.add(rank)
        self._absent.pop(rank, None)
        return [Go(generation)] if len(self._ready) == len(self.job.ranks) else self._miss(now)

    def stepped(self, step: int, now: float, *, is_counted: bool = False) -> None:
        """Rank 0 completed a step.

        is_counted  its optimizer's steps were counted, since the program reports none
        """
        if self._stepped_at is not None:
            self._step_s = now - self._stepped_at
        self._stepped_at, self._step_due = now, None
        self.state = self.restarts.stepped(self.state, step, now, is_counted=is_counted)
        if self.state.unformed:
            self.state = replace(self.state, unformed=0)

    def started_within(self, seconds: float) -> None:
        """Ranks have taken up to so long from the start of a generation to their first step."""
        if seconds > self.state.startup_s:
            self.state = replace(self.state, startup_s=seconds)

    def saves(self, now: float, *, works: bool) -> None:
        """Rank 0 could write to the checkpoint folder, or could not: then a new size would cost the run."""
        if works and self.cannot_save:
            self._schedule_resize(now)
        self.cannot_save = not works

    def stop(self, incarnation: str, now: float) -> None:
        """A pod was asked to terminate: it will leave, so its ranks are not restarted, however they end."""
        self.stopping |= {replica for replica, known in self.agents.items() if known == incarnation}
        self._schedule_resize(now)

    def lost(self, ending: Ending, generation: int, now: float) -> None:
        """A rank is alive, lost its peers and waits. Usually the death is reported within milliseconds."""
        if generation == self.state.generation and self.is_formed:
            self._incident.setdefault(ending.rank, ending)
            self._decide_by(now + CAUSE_WAIT_S)

    def unformed(self, ending: Ending, generation: int, now: float) -> None:
        """A rank did not reach its peers: one died at that moment, packets are lost, or a machine is slow."""
        self._is_unformed = self._is_unformed or generation == self.state.generation
        self.lost(ending, generation, now)

    def failing(self, ending: Ending, generation: int) -> None:
        """A rank reports that it failed. It may exit later than the ranks that fail because of it."""
        if generation == self.state.generation and self.is_formed:
            self._failing[ending.rank] = ending

    def ended(self, ending: Ending, generation: int, now: float) -> list[Action]:
        """A rank exited: done, stopped, or failed."""
        self._healable.discard(ending.rank)
        if self._leaves(ending):
            self._end_with(ending, generation)
            return []
        if generation != self.state.generation or not self.is_formed:
            self._blame(ending)  # too late to be counted, but it may be the cause
            # Its ranks expect the state of a survivor, so that each would start with weights of its own.
            has_lost_all = self.is_formed and self._kept and not self._healable
            return self.renew() if has_lost_all else []
        self._gone.add(ending.rank)
        everyone = len(self._gone) == len(self.job.ranks)
        if ending.failed:
            self._incident[ending.rank] = ending
            self._has_cause = self._has_cause or ending.cause != "PeerLost"
            if not self._waited_for_verdict or everyone:
                self._examine(now)
            return self._decide(now)
        self._done[ending.rank] = ending
        if ending.rank not in self._ready:
            self._absent[ending.rank] = ending
        if self._has_succeeded():
            return self._over(None)
        if ending.rank in self._kept and ending.rank not in self._ready:
            return self.renew()  # it finished without noticing that the others need its state
        return self._over(None) if everyone and not self._incident else self._miss(now)

    def _has_succeeded(self) -> bool:
        """Whether the replicas that decide are done, if only some do: the others are irrelevant then."""
        deciding = self.job.deciding
        return deciding is not None and all(self._is_done(replica) for replica in deciding)

    def _is_done(self, replica: int) -> bool:
        """Whether all its ranks ended with code 0; those that left at an agreed stop are not done."""
        endings = [self._done.get(rank) for rank in self.job.ranks_of(replica)]
        return all(ending is not None and ending.code == contract.EXIT_DONE for ending in endings)

    def _leaves(self, ending: Ending) -> bool:
        """Whether the rank has ended, unfinished, because a pod was asked to terminate."""
        is_asked = ending.rank // self.job.processes in self.stopping
        is_agreed = bool(self.stopping) and ending.stopped_unsaved
        return ending.code != contract.EXIT_DONE and (is_asked or is_agreed)

    def _end_with(self, ending: Ending, generation: int) -> None:
        """A rank has left: what the others do from now on follows from that, so no rank has failed.

        The pod may live for longer, such as with a rank that saves.
        """
        known = (*self._incident.values(), *self._failing.values())
        has_cause = any(each.cause != "PeerLost" and each.at < ending.at for each in known)
        if generation == self.state.generation and self.is_formed and not has_cause:
            self._end_generation()

    def _awaits_end(self) -> bool:
        """Whether the pod of a replica was asked to terminate, so that ranks of it may be gone.

        Its agent does not report ranks that it killed, and starts none: no generation forms before it leaves.
        """
        return any(replica < self.job.replicas and not self._is_done(replica) for replica in self.stopping)

    def _leaves_done(self, replica: int) -> bool:
        """Whether it was asked to terminate when all its ranks were done: then its pod is not replaced."""
        return replica in self.stopping and self._is_done(replica)

    def _miss(self, now: float) -> list[Action]:
        """If a rank ended without joining, those that are ready have lost it: they would wait for ever."""
        if not self._absent or not self._ready:
            return []
        rank, at = min(self._ready), max(ending.at for ending in self._absent.values())
        self._incident.setdefault(rank, Ending(rank=rank, code=contract.EXIT_PEER_LOST, at=at))
        self._decide_by(now)
        return self._decide(now)

    def renew(self) -> list[Action]:
        """This generation cannot be completed, and no rank failed: form the next one."""
        self._end_generation()
        return self._form()

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        return self._resize(now) or self._decide(now) or self._prove(now) or self._end_backoff(now)

    def _prove(self, now: float) -> list[Action]:
        """No step since a silent replica came back: the ranks may wait on connections that are dead."""
        if self._step_due is None or now < self._step_due:
            return []
        self._step_due = None
        loses_nothing = self._healable >= set(self.job.ranks)
        return self.renew() if loses_nothing and self.is_formed and not self._away else []

    def _examine(self, now: float) -> None:
        """Set the time of a decision about the failures so far."""
        everyone = len(self._gone) == len(self.job.ranks)
        at_once = everyone or (self._has_cause and not self._away and not self.stopping)
        self._decide_by(now if at_once else now + CAUSE_WAIT_S)

    def _decide(self, now: float) -> list[Action]:
        if self._decide_at is None or now < self._decide_at or self.is_over:
            return []
        self._decide_at = None
        culprit = first_cause([*self._incident.values(), *self._failing.values()])
        follows = culprit is not None and culprit.cause == "PeerLost" and self._awaits_end()
        if self._away or follows:  # the ranks of a replica are gone: that is why the others failed
            self._end_generation()
            return []
        if culprit is None:
            return self.renew()
        if culprit.cause == "PeerLost" and self._done:
            self.ended_early = sorted(self._done)
            why = f"rank {self.ended_early[0]} {ENDED_EARLY}"
            culprit = replace(culprit, message=f"{culprit.message}\n{why}".lstrip())
        is_cut = self._is_unformed and culprit.cause == "PeerLost"
        self.state = replace(self.state, unformed=self.state.unformed + 1 if is_cut else 0)
        if self.state.unformed == 1:  # the first time is free: more time may be enough
            return self.renew()
        spent = self.restarts.spent(self.state, culprit, now) if self._counts(culprit) else None
        if culprit.is_final or self._left_done or spent is not None:
            if not self._waited_for_verdict and len(self._gone) < len(self.job.ranks):
                self._waited_for_verdict = True
                self._decide_by(now + VERDICT_S)
                return []
            self.state = self.restarts.count_error(self.state, culprit, now)
            return self._over(culprit) + ([Say(f"no further restart: {spent}")] if spent else [])
        self.failure, self.failed_in = culprit, self.state.generation
        if self._counts(culprit):
            self.state = self.restarts.count(self.state, culprit, now)
            if delay_s := self.restarts.backoff_s(self.state):
                return self._begin_backoff(now, delay_s)
        return self.renew()

    def _begin_backoff(self, now: float, delay_s: float) -> list[Action]:
        self._end_generation()
        self._backoff_ends = now + delay_s
        why = f"{row_of(self.state)} failures in a row without progress"
        return [Say(f"the ranks start again in {delay_s:.0f} s: {why}")]

    def _end_backoff(self, now: float) -> list[Action]:
        if self._backoff_ends is None or now < self._backoff_ends:
            return []
        self._backoff_ends = None
        return self._form()

    def _admit(self, hello: Hello) -> None:
        if hello.replica not in self._pods and hello.replica < self.job.replicas:
            self._missing_since.clear()  # the job is starting: the others get as long again
        self.agents[hello.replica] = hello.incarnation
        self._pods[hello.replica] = hello.restarts
        self._machines[hello.replica] = hello.keeper.machine if hello.keeper else ""
        self._lost_at.pop(hello.replica, None)
        self._left_done.discard(hello.replica)
        if hello.is_stopping:
            self.stopping.add(hello.replica)
        theirs = [known.generation for known in hello.ranks.values()]
        self._newest = max(self._newest, hello.state.generation, *theirs)
        ranks = set(self.job.ranks_of(hello.replica))
        self._healable = (self._healable - ranks) | (hello.healable & ranks)

    def _can_resume(self, hello: Hello) -> bool:
        """The agent was here before, and all of its ranks belong to the present generation."""
        known = self.agents.get(hello.replica) or self._away.get(hello.replica)
        ranks = [hello.ranks.get(rank) for rank in self.job.ranks_of(hello.replica)]
        return (
            known == hello.incarnation
            and self.is_formed
            and hello.replica < self.job.replicas
            and all(rank and rank.belongs_to(self.state.generation) for rank in ranks)
        )

    def _resume(self, hello: Hello, now: float) -> list[Action]:
        """Only the connection was lost: catch up on what the replica's ranks did meanwhile."""
        self._away.pop(hello.replica, None)
        self._admit(hello)
        self._schedule_resize(now)
        if self.is_over:
            return [End(self.culprit)]
        generation = self.state.generation
        states = {rank: hello.ranks[rank] for rank in self.job.ranks_of(hello.replica)}
        had_started = len(self._ready) == len(self.job.ranks)
        self._ready |= {rank for rank, known in states.items() if known.is_ready}
        if hello.replica in self._silent:
            self._silent.discard(hello.replica)
            self._step_due = now + max(PROOF_S, 3 * self._step_s)
        actions: list[Action] = []
        if len(self._ready) == len(self.job.ranks):
            actions.append(Go(generation, hello.incarnation if had_started else None))
        for rank, known in states.items():
            if known.lost:
                self._is_unformed = self._is_unformed or known.is_unformed
                self.lost(known.lost, generation, now)
            if known.ending and rank not in self._gone:
                actions += self.ended(known.ending, generation, now)
        if self.is_formed and self._incident:
            self._examine(now)
        return actions + self._decide(now)

    def _decide_by(self, at: float) -> None:
        self._decide_at = at if self._decide_at is None else min(at, self._decide_at)

    def _refusal(self, hello: Hello) -> Refuse | None:
        if hello.uid != self.job.uid:
            return Refuse(hello.incarnation, "this coordinator belongs to another job", for_good=False)
        if hello.attempt > self.job.attempt:
            return Refuse(hello.incarnation, "this coordinator belongs to an older attempt", for_good=False)
        if hello.attempt < self.job.attempt:
            return Refuse(hello.incarnation, f"attempt {self.job.attempt} has started", for_good=True)
        if hello.incarnation in self._replaced or hello.restarts < self._pods.get(hello.replica, 0):
            return Refuse(hello.incarnation, "a newer pod has replaced it", for_good=True)
        if hello.replica not in range(self.job.most):
            why = f"the pods disagree on the job's size: replica {hello.replica} of {self.job.most}"
            return Refuse(hello.incarnation, why, for_good=True)
        if hello.processes != self.job.processes:
            ours, theirs = self.job.processes, hello.processes
            why = f"replica {hello.replica} has --nproc {theirs}, replica 0 has {ours}: all need the same"
            return Refuse(hello.incarnation, why, for_good=True)
        return None

    # The size of an elastic job, see sizing.py.

    def _schedule_resize(self, now: float) -> None:
        if self.job.limits:
            self._resize_at = now + RESIZE_DELAY_S
            # What other replicas do must not postpone it, but some may come back together.
            self._missing_since = {i: self._missing_since.get(i, now) for i in self.missing}
            last = max(self._missing_since.values(), default=None)
            self._shrink_at = None if last is None else max(last + SHRINK_DELAY_S, self._resize_at)

    def _resize(self, now: float) -> list[Action]:
        waits_for_lost = self._shrink_at is None or now < self._shrink_at
        is_due = not waits_for_lost or (self._resize_at is not None and now >= self._resize_at)
        if self.job.limits is None or self.is_over or not is_due:
            return []
        self._resize_at = None
        if not waits_for_lost:
            self._shrink_at = None
        here = self.agents.keys() - self.stopping
        left = self.stopping | self._left
        found = size(
            self.job.replicas, here=here, left=left, limits=self.job.limits, waits_for_lost=waits_for_lost
        )
        grows = found > self.job.replicas
        if found == self.job.replicas or (grows and not self.keeps_run):
            return []
        if not grows and waits_for_lost and not self.keeps_run:
            return []  # shrinking would cost the run without a checkpoint; lost replicas may come back
        if self._away:
            self._end_generation()
        is_running = self.is_formed
        self.job = replace(self.job, replicas=found)
        self._shrink_at = None
        self._end_generation()
        return self._form(gracefully=is_running)

    def _lose(self, replica: int, now: float) -> None:
        """The replica's ranks are gone, or no longer of use."""
        if replica in self._away:
            self._end_generation()
        if self.agents.pop(replica, None) is None:
            return
        self._lost_at[replica] = now
        if replica in self.stopping:
            self._left.add(replica)
        self.stopping.discard(replica)
        if replica >= self.job.replicas:
            return  # it only waited to be needed
        self._schedule_resize(now)
        self._end_generation()

    def _end_generation(self) -> None:
        """The generation is over; later reports about it can only change the culprit."""
        self._decide_at = self._step_due = None
        self._away, self._silent = {}, set()
        self._last_cause, self._incident, self._has_cause = first_cause(self._incident.values()), {}, False
        self.is_formed = False

    def _form(self, *, gracefully: bool = False) -> list[Action]:
        if self._left_done and not self.is_formed and not self.is_over:
            return self._over(self._cannot_form())
        is_short = len(self.agents) < self.job.replicas or self.missing  # the count alone is cheap
        if is_short or self.is_formed or self.is_over or self._backoff_ends is not None:
            return []
        # A rank that is done cannot hand over its state, and none can keep it in a world of another size:
        # then all ranks restart from the newest checkpoint.
        is_resized = self.state.replicas not in (None, self.job.replicas)
        holding = frozenset(rank for rank in self._healable if rank in self.job.ranks)
        self._kept = frozenset() if self._done or is_resized else holding
        self._healable = set(self._kept)
        self._ready, self._done, self._absent, self._gone = set(), {}, {}, set()
        self.restarts.start_generation()
        self._failing, self._waited_for_verdict, self._is_unformed = {}, False, False
        shift, replicas = self.state.shift, self.job.replicas
        if self.state.replicas != replicas:  # else the buddies have what a new pod needs
            shift = choose_shift(self._machines, replicas)
        generation = max(self.state.generation, self._newest) + 1
        self.state = replace(self.state, generation=generation, replicas=replicas, shift=shift)
        self._shrink_at = None
        self.is_formed = True
        connect_s = CONNECT_S + len(self.job.ranks) // _RANKS_PER_S
        connect_s = min(connect_s * 2**self.state.unformed, LONGEST_CONNECT_S)
        return [Form(self.state.generation, self._kept, self.job.replicas, gracefully, connect_s)]

    def _cannot_form(self) -> Ending:
        """The failure of a job that needs a replica which is done and gone: all pods must start again."""
        gone = min(self._left_done)
        rank = next((rank for rank in self.job.ranks if rank not in self._done), 0)
        at = max(ending.at for ending in self._done.values())
        why = f"replica {gone} was done and left when its pod was asked to terminate: no rank can start again"
        return Ending(rank=rank, code=contract.EXIT_PEER_LOST, at=at, message=why)

    def _over(self, culprit: Ending | None) -> list[Action]:
        self.is_over, self.culprit = True, culprit
        return [End(culprit)]

    def _counts(self, culprit: Ending) -> bool:
        """A survivor that dies before it is ready again belongs to the fault that is being healed."""
        return culprit.rank not in self._kept or culprit.rank in self._ready

    def _blame(self, ending: Ending) -> None:
        if ending.failed and self._last_cause:
            self.failure = self._last_cause = first_cause((self._last_cause, ending))
