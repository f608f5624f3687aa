"""Who is in which generation, and what follows from a loss: the coordinator's decisions. Pure.

    facts from the agents (join, leave, ready, ended, ...)  ->  actions that coordinator.py carries out

    gathering --all replicas have joined--> formed --a rank fails--> formed again, as the next generation
        ^                                     |
        +----------- a replica is lost -------+---- all ranks done, or no restart left ----> over

Forming keeps ranks that hold the run in memory (`healable`) and restarts the others. If no rank holds it, all
ranks restart and resume from the newest checkpoint. `now` is seconds of a monotonic clock.
"""

from dataclasses import dataclass, field, replace

from dtj import contract
from dtj.agent.outcome import Ending, first_cause
from dtj.agent.protocol import (
    CONNECT_S,
    Action,
    CoordinatorState,
    End,
    Form,
    Go,
    Hello,
    Job,
    Refuse,
    RestartBudget,
)
from dtj.agent.sizing import RESIZE_DELAY_S, SHRINK_DELAY_S, size

# Time to wait, after a rank "lost a peer", for the failure that caused it.
CAUSE_WAIT_S = 5.0
# Before a failure ends the job: time to hear of an earlier one, from another replica or a slowly dying rank.
VERDICT_S = 0.5
# The machines may be slow: ranks that did not connect in time get twice the time, up to this limit.
LONGEST_CONNECT_S = 160.0


@dataclass(kw_only=True)
class Membership:
    """Every method takes one fact and returns the actions that follow."""

    job: Job
    budget: RestartBudget
    state: CoordinatorState = field(default_factory=CoordinatorState)
    agents: dict[int, str] = field(default_factory=dict)  # replica -> incarnation
    failure: Ending | None = None
    failed_in: int = 0  # generation of the failure
    is_formed: bool = False
    is_over: bool = False
    stopping: set[int] = field(default_factory=set)  # replicas whose pod was asked to terminate
    _healable: set[int] = field(default_factory=set)
    _ready: set[int] = field(default_factory=set)
    _kept: frozenset[int] = frozenset()
    _done: set[int] = field(default_factory=set)
    _gone: set[int] = field(default_factory=set)
    _replaced: set[str] = field(default_factory=set)
    _incident: dict[int, Ending] = field(default_factory=dict)  # failures of this generation, by rank
    _last_incident: dict[int, Ending] = field(
        default_factory=dict
    )  # of the previous generation, still growing
    _failing: dict[int, Ending] = field(default_factory=dict)  # reported a failure and have not exited yet
    _decide_at: float | None = None
    _waited_for_verdict: bool = False  # VERDICT_S has been granted for an earlier failure to arrive
    _is_unformed: bool = False  # some rank did not reach its peers in this generation
    _best_at_fault: int | None = None
    _left: set[int] = field(default_factory=set)  # replicas whose pod was asked to terminate and is gone
    _resize_at: float | None = None
    _shrink_at: float | None = None
    _lost_at: dict[int, float] = field(default_factory=dict)  # replicas that took part and are missing now

    @property
    def missing(self) -> list[int]:
        """Replicas that have not joined."""
        return [replica for replica in range(self.job.replicas) if replica not in self.agents]

    def waited_for(self, now: float) -> dict[int, float]:
        """Replicas that took part and are missing, and for how many seconds."""
        if self.is_over:
            return {}
        return {i: now - self._lost_at[i] for i in self.missing if i in self._lost_at}

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        known = [at for at in (self._decide_at, self._resize_at, self._shrink_at) if at is not None]
        return min(known, default=None)

    def join(self, hello: Hello, now: float) -> list[Action]:
        """An agent asks to join; it replaces an older agent of the same replica."""
        refusal = self._refusal(hello)
        if refusal:
            return [refusal]
        actions: list[Action] = []
        older = self.agents.get(hello.replica)
        if older and older != hello.incarnation:
            self._replaced.add(older)
            actions.append(Refuse(older, "a newer pod has replaced it", for_good=True))
        self._lose(hello.replica, now)
        self.agents[hello.replica] = hello.incarnation
        self._lost_at.pop(hello.replica, None)
        self._left.discard(hello.replica)
        self._healable |= hello.healable & set(self.job.ranks_of(hello.replica))
        if hello.state.generation > self.state.generation:
            # Our in_place comes from the operator, and covers agents that are gone; theirs is what they saw.
            healed = max(self.state.in_place, hello.state.in_place)
            self.state = replace(hello.state, in_place=healed)
            if self.job.limits and hello.state.replicas:
                self.job = replace(self.job, replicas=min(self.job.replicas, hello.state.replicas))
            for replica in self.missing:  # all of these were part of that generation
                self._lost_at.setdefault(replica, now)
        self._schedule_resize(now)
        return actions + self._form()

    def leave(self, incarnation: str, now: float) -> list[Action]:
        """An agent's connection is gone, and presumably its pod."""
        for replica in [r for r, i in self.agents.items() if i == incarnation]:
            self._lose(replica, now)
        return []

    def hold(self, rank: int, *, holds: bool) -> list[Action]:
        """Whether a rank holds the run in memory and can join a new generation without a restart."""
        if holds:
            self._healable.add(rank)
        else:
            self._healable.discard(rank)
        return []

    def ready(self, rank: int, generation: int) -> list[Action]:
        """A rank waits until its generation is complete."""
        if generation != self.state.generation or not self.is_formed:
            return []
        self._ready.add(rank)
        return [Go(generation)] if len(self._ready) == len(self.job.ranks) else []

    def stepped(self, step: int) -> list[Action]:
        """Some rank completed a step."""
        if self.state.best_step is None or step > self.state.best_step or self.state.unformed:
            self.state = replace(self.state, best_step=max(step, self.state.best_step or 0), unformed=0)
        return []

    def stop(self, incarnation: str, now: float) -> list[Action]:
        """A pod was asked to terminate: it will leave, so its ranks are not restarted, however they end."""
        self.stopping |= {replica for replica, known in self.agents.items() if known == incarnation}
        self._schedule_resize(now)
        return []

    def lost(self, ending: Ending, generation: int, now: float) -> list[Action]:
        """A rank is alive, lost its peers and waits. Usually the death is reported within milliseconds."""
        if generation == self.state.generation and self.is_formed:
            self._incident.setdefault(ending.rank, ending)
            self._decide_by(now + CAUSE_WAIT_S)
        return []

    def unformed(self, ending: Ending, generation: int, now: float) -> list[Action]:
        """A rank did not reach its peers: one died at that moment, packets are lost, or a machine is slow."""
        self._is_unformed = self._is_unformed or generation == self.state.generation
        return self.lost(ending, generation, now)

    def failing(self, ending: Ending, generation: int) -> list[Action]:
        """A rank reports that it failed. It may exit later than the ranks that fail because of it."""
        if generation == self.state.generation and self.is_formed:
            self._failing[ending.rank] = ending
        return []

    def ended(self, ending: Ending, generation: int, now: float) -> list[Action]:
        """A rank exited: done, stopped, or failed."""
        self._healable.discard(ending.rank)
        if generation != self.state.generation or not self.is_formed:
            self._blame(self._last_incident, ending)  # too late to be counted, but it may be the cause
            return []
        if ending.rank // self.job.processes in self.stopping:
            return []
        self._gone.add(ending.rank)
        everyone = len(self._gone) == len(self.job.ranks)
        if ending.failed:
            self._incident[ending.rank] = ending
            has_cause = ending.cause != "PeerLost"
            if not self._waited_for_verdict or everyone:
                self._decide_by(now if has_cause or everyone else now + CAUSE_WAIT_S)
            return self._decide(now)
        self._done.add(ending.rank)
        if ending.rank in self._kept and ending.rank not in self._ready:
            return self.renew()  # it finished without noticing that the others need its state
        return self._over(None) if everyone and not self._incident else []

    def renew(self) -> list[Action]:
        """This generation cannot be completed, and no rank failed: form the next one."""
        self._end_generation()
        return self._form()

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        return self._resize(now) or self._decide(now)

    def _decide(self, now: float) -> list[Action]:
        if self._decide_at is None or now < self._decide_at or self.is_over:
            return []
        self._decide_at = None
        culprit = first_cause([*self._incident.values(), *self._failing.values()])
        if culprit is None:
            return self.renew()
        is_cut = self._is_unformed and culprit.cause == "PeerLost"
        self.state = replace(self.state, unformed=self.state.unformed + 1 if is_cut else 0)
        if self.state.unformed == 1:  # the first time is free: more time may be enough
            return self.renew()
        self.failure, self.failed_in = culprit, self.state.generation
        if culprit.code == contract.EXIT_BAD_RECIPE or self._is_spent(culprit):
            if not self._waited_for_verdict and len(self._gone) < len(self.job.ranks):
                self._waited_for_verdict = True
                self._decide_by(now + VERDICT_S)
                return []
            return self._over(culprit)
        if self._counts(culprit):
            self.state = self._counted()
        return self.renew()

    def _decide_by(self, at: float) -> None:
        self._decide_at = at if self._decide_at is None else min(at, self._decide_at)

    def _refusal(self, hello: Hello) -> Refuse | None:
        if hello.uid != self.job.uid:
            return Refuse(hello.incarnation, "this coordinator belongs to another job", for_good=False)
        if hello.attempt > self.job.attempt:
            return Refuse(hello.incarnation, "this coordinator belongs to an older attempt", for_good=False)
        if hello.attempt < self.job.attempt:
            return Refuse(hello.incarnation, f"attempt {self.job.attempt} has started", for_good=True)
        if hello.incarnation in self._replaced:
            return Refuse(hello.incarnation, "a newer pod has replaced it", for_good=True)
        if hello.replica not in range(self.job.most):
            why = f"the pods disagree on the job's size: replica {hello.replica} of {self.job.most}"
            return Refuse(hello.incarnation, why, for_good=True)
        return None

    # The size of an elastic job, see sizing.py.

    def _schedule_resize(self, now: float) -> None:
        if self.job.limits:
            self._resize_at = now + RESIZE_DELAY_S
            self._shrink_at = now + SHRINK_DELAY_S if self.missing else None

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
        if found == self.job.replicas or (grows and not self.job.saves):
            return []
        if not grows and waits_for_lost and not self.job.saves:
            return []  # shrinking would cost the run without a checkpoint; lost replicas may come back
        is_running = self.is_formed
        self.job = replace(self.job, replicas=found)
        self._shrink_at = None
        self._healable = set()
        self._end_generation()
        return self._form(gracefully=is_running)

    def _lose(self, replica: int, now: float) -> None:
        """The replica's ranks are out of reach, whether they are alive or not."""
        if self.agents.pop(replica, None) is None:
            return
        self._lost_at[replica] = now
        if replica in self.stopping:
            self._left.add(replica)
        self.stopping.discard(replica)
        if replica >= self.job.replicas:
            return  # it only waited to be needed
        self._schedule_resize(now)
        self._healable -= set(self.job.ranks_of(replica))
        self._end_generation()

    def _end_generation(self) -> None:
        """The generation is over; later reports about it can only change the culprit."""
        self._decide_at = None
        self._last_incident, self._incident = self._incident, {}
        self.is_formed = False

    def _form(self, *, gracefully: bool = False) -> list[Action]:
        if self.missing or self.is_formed or self.is_over:
            return []
        # A rank that is done cannot hand over its state: then all ranks restart from the newest checkpoint.
        self._kept = frozenset() if self._done else frozenset(self._healable)
        self._healable = set(self._kept)
        self._ready, self._done, self._gone = set(), set(), set()
        self._failing, self._waited_for_verdict, self._is_unformed = {}, False, False
        self.state = replace(self.state, generation=self.state.generation + 1, replicas=self.job.replicas)
        self._shrink_at = None
        self.is_formed = True
        connect_s = min(CONNECT_S * 2**self.state.unformed, LONGEST_CONNECT_S)
        return [Form(self.state.generation, self._kept, self.job.replicas, gracefully, connect_s)]

    def _over(self, culprit: Ending | None) -> list[Action]:
        self.is_over = True
        return [End(culprit)]

    def _counts(self, culprit: Ending) -> bool:
        """A survivor that dies before it is ready again belongs to the fault that is being healed."""
        return culprit.rank not in self._kept or culprit.rank in self._ready

    def _is_spent(self, culprit: Ending) -> bool:
        if not self._counts(culprit):
            return False
        stuck = self.state.best_step is not None and not self._has_grown()
        return self.state.in_place >= self.budget.restarts or (
            stuck and self.state.without_progress >= self.budget.without_progress
        )

    def _has_grown(self) -> bool:
        best, before = self.state.best_step, self._best_at_fault
        return best is not None and (before is None or best > before)

    def _counted(self) -> CoordinatorState:
        row = 0 if self._has_grown() else self.state.without_progress
        self._best_at_fault = self.state.best_step
        return replace(self.state, in_place=self.state.in_place + 1, without_progress=row + 1)

    def _blame(self, incident: dict[int, Ending], ending: Ending) -> None:
        if ending.failed and incident:
            incident[ending.rank] = ending
            self.failure = first_cause(incident.values())
