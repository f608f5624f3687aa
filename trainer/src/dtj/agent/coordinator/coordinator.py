"""The coordinator of a job, in replica 0's agent: passes facts to membership.py, carries out its decisions.

It runs in the agent's loop. Each agent keeps one connection to it. Replica 0's own agent has one too, a
socket pair, so that messages take the same path whether a job has one pod or a thousand.
"""

import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dtj.agent.coordinator.agent_links import AgentLinks
from dtj.agent.coordinator.ledger import Ledger
from dtj.agent.coordinator.membership import ENDED_EARLY, Membership
from dtj.agent.coordinator.store import Store
from dtj.agent.coordinator.watch.hang import Watchdog
from dtj.agent.coordinator.watch.monitor import Monitor
from dtj.agent.wire import buddies, facts, outcome
from dtj.agent.wire.checked import printable
from dtj.agent.wire.link import KEEPALIVE_S, SILENCE_S, Link, Message, free_ports, pace_s
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.protocol import Action, End, Form, Go, Hello, Keeper, OtherProtocolError, Refuse, Say
from dtj.agent.wire.signs import Activity, Heartbeat

_MAX_LISTED = 8  # replicas or ranks listed in one log line
# Ranks of other replicas, the lowest first, and missing replicas in /status: it must fit into one datagram.
MAX_IN_STATUS = 1000
_TELL_EVERY_S = 10.0  # which replicas are missing
_LINGER_S = 5.0


class Coordinator:
    """I/O around a Membership; `log` writes a line for the user."""

    def __init__(
        self,
        membership: Membership,
        watchdog: Watchdog,
        selector: selectors.BaseSelector,
        *,
        restarts_hung: bool = True,
        working_s: float | None = None,
        log: Callable[[str], None],
    ) -> None:
        self.membership = membership
        self._monitor = Monitor(
            watchdog,
            restarts=restarts_hung,
            working_s=working_s,
            log=log,
            broadcast=self._broadcast,
            tell_each=lambda message: self._tell_each(lambda i: message(membership.job.ranks_of(i))),
        )
        known = membership.state.best_step  # by an earlier attempt, or replica 0 before this one
        self.ledger = Ledger(since=time.monotonic(), best_step=-1 if known is None else known)
        self.steps: dict[int, int] = {}
        self._log = log
        self._links = AgentLinks(
            selector,
            most=membership.job.most,
            on_message=self._on_message,
            on_closed=self._drop_closed,
            log=log,
        )
        self._store: Store | None = None
        self._told_missing: list[int] = []
        self._tell_missing_at = 0.0
        self._keepalive_at = time.monotonic() + KEEPALIVE_S

    def listen(self, port: int) -> None:
        """Accept the other agents; MachineError if the port is taken."""
        self._links.listen(port)

    def link(self) -> socket.socket:
        """The agent's end of a new connection within this process."""
        return self._links.connect()

    @property
    def deadline(self) -> float:
        """When `tick` has something to do."""
        known = [
            self._keepalive_at,
            self.membership.deadline,
            self._monitor.deadline if self._is_watched else None,
        ]
        return min(at for at in known if at is not None)

    def tick(self) -> None:
        """Time has passed."""
        now = time.monotonic()
        self._act(self.membership.tick(now))
        if self._is_watched:
            for rank in self._monitor.tick(now, leaving=self.membership.leaving):
                self.membership.hold(rank, holds=False)  # all of them are about to be killed, in any order
        else:
            self._monitor.cancel_probe()
        if now < self._keepalive_at:
            return
        self._keepalive_at = now + pace_s(self.membership.job.most, least_s=KEEPALIVE_S)
        for hello in self._links.keep_alive(self._with_state({"keepalive": True}), now):
            if hello and self._is_present(hello):
                self._log(f"no message from replica {hello.replica} for {SILENCE_S:.0f} s")
                self.membership.leave(hello.incarnation, now, silent=True)
                self.ledger.fault(now)
        self._drop_closed()
        self._log_missing(now)

    def _log_missing(self, now: float) -> None:
        """Say which replicas have not joined, when that changes, but not for each of a thousand."""
        missing = self.membership.missing
        if missing == self._told_missing or now < self._tell_missing_at:
            return
        self._told_missing, self._tell_missing_at = missing, now + _TELL_EVERY_S
        if missing and not self.membership.is_over:
            self._log(f"waiting for replica {some(missing)}")

    @property
    def _is_watched(self) -> bool:
        """All ranks of the generation are expected to complete steps, and their agents to report them."""
        member = self.membership
        return member.is_formed and not member.away and not member.is_over

    def reaped(self, pid: int) -> bool:
        """A child process exited; return True if it was the store."""
        if self._store is None or pid != self._store.pid:
            return False
        self._store = None
        self._act(self.membership.renew())
        return True

    def close(self) -> None:
        """Stop the store and close all connections; if the job is over, once the agents know the result."""
        if self._store:
            self._store.stop()
        self._links.close(linger_s=_LINGER_S if self.membership.is_over else 0.0)

    def _on_message(self, link: Link, message: Message) -> None:
        hello = self._links.hellos[link]
        if "hello" in message and hello is None:
            self._act(self._on_hello(link, message["hello"]))
        elif hello and self._is_present(hello):  # ignore messages from an agent that has been replaced
            self._on_fact(link, hello, message)

    def _on_fact(self, link: Link, hello: Hello, message: Message) -> None:
        try:
            fact = facts.parse(message, ranks=self.membership.job.ranks_of(hello.replica))
        except ValueError as error:
            self._log(f"closed the connection to replica {hello.replica}: malformed message ({error})")
            link.close()
        else:
            self._handle(hello, fact)

    def _handle(self, hello: Hello, fact: facts.Fact | None) -> None:
        now, member = time.monotonic(), self.membership
        match fact:
            case facts.Ready(rank, generation):
                self._act(member.ready(rank, generation, now))
            case facts.Hold(rank, holds):
                member.hold(rank, holds=holds)
            case facts.Heartbeats(heartbeats):
                self._on_heartbeats(heartbeats, now)
            case facts.Activities(activities):
                self._on_activity(activities, now)
            case facts.Probes(probes, number) if self._is_watched:
                self._monitor.probed(number, probes)
            case facts.Saves(0, works):
                self._on_saves(now, works=works)
            case facts.Stopping():
                member.stop(hello.incarnation, now)
            case facts.Lost(ending, generation):
                member.lost(ending, generation, now)
            case facts.Failing(ending, generation):
                member.failing(ending, generation)
            case facts.Unformed(ending, generation):
                member.unformed(ending, generation, now)
            case facts.Ended(ending, generation):
                self._act(self._on_ended(ending, generation, now))

    def _on_hello(self, link: Link, fields: Message) -> list[Action]:
        try:
            hello = Hello.parse(fields)
        except OtherProtocolError as error:
            self._log(f"refused replica {printable(fields.get('replica'))}: {error}")
            job = self.membership.job
            is_ours = (fields.get("uid"), fields.get("attempt")) == (job.uid, job.attempt)
            self._links.turn_away(link, refusal(str(error), for_good=is_ours))
            return []
        except ValueError:
            link.close()
            return []
        self._links.introduce(link, hello)
        now = time.monotonic()
        before, was_away = self.membership.state.generation, hello.replica in self.membership.away
        actions = self.membership.join(hello, now)
        self._monitor.startup_s = max(self._monitor.startup_s, self.membership.state.startup_s)
        if was_away and self.membership.is_formed and self.membership.state.generation == before:
            self._log(f"replica {hello.replica} is connected again; its ranks were not affected")
            self._monitor.excuse(now)
            self.ledger.forget_fault()
        if self.membership.is_formed and hello.replica in self._left_out:
            self._log(self._why_waiting([hello.replica]))
        return actions

    def _on_heartbeats(self, heartbeats: Mapping[int, Heartbeat], now: float) -> None:
        for rank, heartbeat in heartbeats.items():
            if heartbeat.generation != self.membership.state.generation:
                continue  # from an earlier generation; a survivor sends it again
            self._monitor.observe(rank, heartbeat, now)
            self.membership.started_within(self._monitor.startup_s)
            step = heartbeat.step
            if step is None or step == self.steps.get(rank):
                continue
            self.steps[rank] = step
            if rank == 0:
                self.ledger.stepped(step, heartbeat.at or now)  # rank 0's clock is this machine's
                self.membership.stepped(step, now, is_counted=heartbeat.is_counted)

    def _on_activity(self, activities: Mapping[int, Activity], now: float) -> None:
        for rank, activity in activities.items():
            if activity.generation == self.membership.state.generation:
                self._monitor.observe_activity(rank, activity, now)

    def _on_saves(self, now: float, *, works: bool) -> None:
        could_not = self.membership.cannot_save
        self.membership.saves(now, works=works)
        if self.membership.cannot_save and not could_not and self._left_out:
            self._log(self._why_waiting(self._left_out))

    def _on_ended(self, ending: Ending, generation: int, now: float) -> list[Action]:
        if generation == self.membership.state.generation:  # else the rank has been restarted since
            self._monitor.ended(ending.rank)
        if ending.failed:
            self.ledger.fault(now)
        return self.membership.ended(ending, generation, now)

    def _act(self, actions: list[Action]) -> None:
        early, self.membership.ended_early = self.membership.ended_early, []
        if early:
            self._log(f"rank {some(early)} {ENDED_EARLY}")
        for action in actions:
            match action:
                case Form():
                    self._form(action)
                case Go(generation, None):
                    self._broadcast({"go": generation})
                case Go(generation, str(agent)):
                    self._links.tell(agent, self._with_state({"go": generation}))
                case Refuse(incarnation, why, for_good):
                    self._links.refuse(incarnation, refusal(why, for_good=for_good))
                case End(culprit):
                    self._log_cause(culprit)
                    self._broadcast({"end": culprit})
                case Say(text):
                    self._log(text)

    def _form(self, form: Form) -> None:
        generation, kept = form.generation, form.kept
        job = self.membership.job
        old, self._store = self._store, Store.start() if len(job.ranks) > 1 else None
        now = time.monotonic()
        if form.gracefully:
            self.ledger.fault(now)
        self.ledger.formed(now)
        self._monitor.start_generation(job.ranks, now, generation=generation, processes=job.processes)
        if generation > 1:
            self._log_cause(self.membership.failure if self.membership.failed_in == generation - 1 else None)
            self._log(self._plan(generation, kept))
        self.steps = {rank: step for rank, step in self.steps.items() if rank in kept}
        if self._left_out:
            self._log(self._why_waiting(self._left_out))
        # A rank that is alone starts its own store, if it wants one.
        port = self._store.port if self._store else free_ports(1)[0]
        order = asdict(form) | {"port": port, "heals": bool(kept)}
        keepers = {
            hello.replica: (address, hello.keeper)
            for hello, address in self._links.addresses()
            if hello.keeper and self._is_present(hello)
        }

        def form_of(replica: int) -> Message:
            mine = sorted(kept.intersection(job.ranks_of(replica)))
            return {"form": order | {"kept": mine, "copies": self._buddies(replica, keepers)}}

        self._tell_each(form_of)
        if old:
            old.stop()  # wakes ranks that still wait in it

    def _buddies(self, replica: int, keepers: Mapping[int, tuple[str, Keeper]]) -> Message:
        """Who keeps this replica's copies, and whose it keeps."""
        replicas, shift = self.membership.job.replicas, self.membership.state.shift
        if not shift or replica >= replicas:
            return {"buddy": None, "ward": None}
        found = keepers.get(buddies.buddy_of(replica, shift=shift, replicas=replicas))
        buddy = found and {"host": found[0], "port": found[1].port, "token": found[1].token}
        return {"buddy": buddy, "ward": buddies.ward_of(replica, shift=shift, replicas=replicas)}

    @property
    def _left_out(self) -> list[int]:
        """Connected replicas beyond the job's size, if it cannot grow."""
        member = self.membership
        can_grow = member.keeps_run and not member.unfit
        return [] if can_grow else sorted(i for i in member.agents if i >= member.job.replicas)

    def _why_waiting(self, replicas: Sequence[int]) -> str:
        if unfit := self.membership.unfit:
            what = f"whose --mesh does not fit {unfit} replicas"
        elif self.membership.cannot_save:
            what = "that cannot write its checkpoints"
        else:
            what = "without a checkpoint folder"
        return f"a job {what} cannot grow: replica {some(replicas)} must wait"

    def _log_cause(self, culprit: Ending | None) -> None:
        """Say which rank of another replica failed: there, its own agent says so, in another log."""
        replica = culprit.rank // self.membership.job.processes if culprit else 0
        if culprit and replica and culprit.cause != "PeerLost":
            self._log(f"replica {replica}: {outcome.summary(culprit)}")

    def _plan(self, generation: int, kept: frozenset[int]) -> str:
        started = [rank for rank in self.membership.job.ranks if rank not in kept]
        if not started:
            what = "all ranks kept their state"
        elif kept:
            what = f"restarted rank {some(started)}; other ranks kept their state"
        else:
            what = "restarted all ranks"
        job, restarts = self.membership.job, self.membership.restarts
        size = f"{job.replicas} replica{'s' if job.replicas > 1 else ''}; " if job.limits else ""
        used = f"({restarts.used(time.monotonic())} of {restarts.budget.restarts} in-place restarts used)"
        return f"generation {generation}: {size}{what} {used}"

    def _broadcast(self, message: Message) -> None:
        self._links.broadcast(self._with_state(message), to=self._is_present)

    def _tell_each(self, message_for: Callable[[int], Message]) -> None:
        """Send to each agent what its own ranks need: all ranks to all agents would be gigabytes."""
        for hello in self._links.named():
            if self._is_present(hello):
                self._links.tell(hello.incarnation, self._with_state(message_for(hello.replica)))

    def _is_present(self, hello: Hello) -> bool:
        """Whether this is the current agent of its replica."""
        return self.membership.agents.get(hello.replica) == hello.incarnation

    def _with_state(self, message: Message) -> Message:
        """Every message carries the state, so that agents that outlive this coordinator know it."""
        return message | {"state": vars(self.membership.state)}

    def _drop_closed(self) -> None:
        """Handle closed connections: their agents have left."""
        for hello in self._links.take_closed():
            was_present, now = self._is_present(hello), time.monotonic()
            self.membership.leave(hello.incarnation, now)
            if was_present and hello.replica in self.membership.missing and not self.membership.is_over:
                self._log(f"lost the connection to replica {hello.replica}; its ranks may be alive")
                self.ledger.fault(now)

    def status_fields(self) -> dict[str, Any]:
        """The fields of /status that only the coordinator knows; `ranks` are those of other replicas."""
        member, now, slowest = self.membership, time.monotonic(), self._monitor.slowest
        job, state, failure = member.job, member.state, member.failure
        elsewhere = sorted(self.steps.keys() - set(job.ranks_of(0)))[:MAX_IN_STATUS]
        missing = list(member.waited_for(now).items())[:MAX_IN_STATUS]
        return {
            "generation": state.generation,
            "worldSize": len(job.ranks) if state.generation else None,
            "ranks": [
                {"rank": rank, "pid": None, "state": member.state_of(rank), "step": self.steps[rank]}
                for rank in elsewhere
            ],
            "slowestRank": slowest and slowest["rank"],
            "slowest": slowest,
            "hang": self._monitor.hang,
            "missing": [{"replica": replica, "seconds": round(s, 1)} for replica, s in missing],
            "waiting": self._why_waiting(left_out) if (left_out := self._left_out) else None,
            "restarts": {
                "inPlace": state.in_place,
                "withoutProgress": state.without_progress,
                "ofNewestPod": member.restarts_before_newest,
            },
            "failure": failure
            and outcome.failure_fields(failure, generation=member.failed_in, processes=job.processes),
            "ledger": {kind: round(s, 3) for kind, s in self.ledger.at(now).items()},
        }


def refusal(why: str, *, for_good: bool) -> Message:
    """The message to an agent that may not join."""
    return {"refused": why, "forGood": for_good}


def some(numbers: Sequence[int]) -> str:
    """List the first few and count the rest."""
    named = ", ".join(map(str, numbers[:_MAX_LISTED]))
    return named + (f" and {len(numbers) - _MAX_LISTED} more" if len(numbers) > _MAX_LISTED else "")
