"""Carries out the coordinator's orders on the ranks of this pod, and builds this agent's hello.

coordinator -> coordinator_client.py -> Orders.obey -> supervisor.py starts, signals and kills ranks
"""

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from dtj import contract
from dtj.agent.placement import Placement
from dtj.agent.replica.coordinator_client import CoordinatorClient
from dtj.agent.replica.heartbeats import HeartbeatReader
from dtj.agent.replica.keeper_process import KeeperProcess
from dtj.agent.replica.looks import Looks
from dtj.agent.replica.stacks import RankStacks
from dtj.agent.replica.supervisor import Supervisor
from dtj.agent.report.status import Status
from dtj.agent.wire.facts import Probes, Stopping
from dtj.agent.wire.link import Message
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.probe import Probe
from dtj.agent.wire.protocol import PROTOCOL, CoordinatorState, Job
from dtj.copies.buddy import Address


class Orders:
    """This pod's part in the job.

    is_stopping  the pod was asked to terminate: its ranks join no further generation
    is_over      the job is over for this pod
    culprit      the rank that failed the job, on any replica; None if no rank did
    keeper       exchanges copies of state with other replicas; None without them
    """

    def __init__(
        self,
        job: Job,
        placement: Placement,
        *,
        status: Status,
        heartbeats: HeartbeatReader,
        looks: Looks,
        supervisor: Supervisor,
        client: CoordinatorClient,
        log: Callable[[str], None],
    ) -> None:
        self.is_stopping = False
        self.is_over = False
        self.culprit: Ending | None = None
        self.keeper: KeeperProcess | None = None
        self._job = job
        self._placement = placement
        self._status = status
        self._heartbeats = heartbeats
        self._looks = looks
        self._supervisor = supervisor
        self._client = client
        self._log = log
        self._incarnation = uuid.uuid4().hex
        self._coordinator_state: Message = {}
        self._allowed: int | None = None
        self._probed: list[RankStacks] = []  # logged if they turn out to belong to a hang

    @property
    def has_succeeded(self) -> bool:
        """The job has, whatever becomes of the ranks of this pod that still run."""
        return self.is_over and self.culprit is None

    @property
    def coordinator_state(self) -> Message:
        """The fields of `CoordinatorState` as last received; before that, those of the environment."""
        return self._coordinator_state

    def remember(self, past: CoordinatorState, *, allowed: int | None) -> None:
        """Tell the coordinator what the operator counted before this agent started, such as a lost pod."""
        known = {"without_progress": past.without_progress, "best_step": past.best_step}
        self._coordinator_state, self._allowed = known, allowed

    def hello(self) -> Message:
        """The first message on every new connection; repeats all that the coordinator must know."""
        for process in self._supervisor.alive():
            self._heartbeats.forget(process)
        return {
            "protocol": PROTOCOL,
            "uid": self._job.uid,
            "attempt": self._job.attempt,
            "replica": self._placement.node_rank,
            "incarnation": self._incarnation,
            "processes": self._job.processes,
            "restarts": self._placement.restarts,
            "isStopping": self.is_stopping,
            "ranks": self._supervisor.states(),
            "state": self._coordinator_state,
            "keeper": self.keeper and self.keeper.address,
            "allowed": self._allowed,
        }

    def obey(self, message: Message) -> None:
        """Carry out one message of the coordinator; see protocol.py and monitor.py."""
        self._coordinator_state = message.get("state", self._coordinator_state)
        match message:
            case {"form": form}:
                self._form(**form)
            case {"go": generation}:
                for process in self._supervisor.alive():
                    if process.generation == generation:
                        process.order({"go": generation})
            case {"probe": number, "looks_s": looks_s}:
                self._looks.request(looks_s, lambda probes, found: self._send_probes(number, probes, found))
            case {"hang": sentences, "generation": generation, "is_shared": is_shared}:
                self._kill_hung(sentences, generation, is_shared=is_shared)
            case {"end": culprit}:
                self.is_over = True
                self.culprit = culprit and Ending.from_json(culprit)
                if self.culprit:
                    self._supervisor.shut_down()
                elif self._placement.node_rank > 0:  # replica 0 waits for this before it ends
                    self._client.disconnect()
            case {"refused": why}:
                self._leave(why)

    def _form(
        self,
        *,
        generation: int,
        port: int,
        kept: list[int],
        heals: bool,
        replicas: int,
        gracefully: bool,
        connect_s: float,
        copies: dict[str, Any],
    ) -> None:
        """Bring the ranks into a generation: send it to those that hold the run, restart the others.

        kept    ranks of this pod
        heals   some rank of the job holds the run
        copies  who keeps those of this replica, and of which replica it keeps them, see `_use_buddy`
        """
        if self.is_stopping:
            self._client.send(Stopping())
            return
        self._status.formed(generation)
        self._placement = replace(self._placement, nnodes=replicas)
        if self._placement.node_rank >= replicas:
            self._log(f"the job continues with {replicas} replicas; this replica waits until it is needed")
            self._supervisor.end(gracefully=gracefully, step_s=self._heartbeats.step_s)
            return
        addr = self._client.peer
        address = self._use_buddy(**copies)
        for rank in self._placement.ranks:
            process = self._supervisor.newest.get(rank)
            if process and process.ending is None and process.holds and rank in kept:
                process.generation = generation
                self._heartbeats.forget(process)
                process.order({"number": generation, "addr": addr, "port": port, "connect_s": connect_s})
                continue
            env = self._placement.env_of(
                rank, generation=generation, store=(addr, port), heals=heals, connect_s=connect_s
            )
            env[contract.INCARNATION] = self._incarnation
            env[contract.BUDDY] = address.format() if address else ""
            self._supervisor.start(
                rank, env, generation=generation, gracefully=gracefully, step_s=self._heartbeats.step_s
            )

    def _use_buddy(self, buddy: dict[str, Any] | None, ward: int | None) -> Address | None:
        """Have copies sent to the buddy and kept for the ward; returns where this replica's copies are.

        buddy  fields of the address of its keeper; without a host it is replica 0's
        """
        if self.keeper is None:
            return None
        address = Address(**buddy | {"host": buddy["host"] or self._client.peer}) if buddy else None
        self.keeper.use(address, () if ward is None else self._job.ranks_of(ward))
        return address

    def _send_probes(self, number: int, probes: dict[int, Probe], found: list[RankStacks]) -> None:
        self._probed = found
        self._client.send(Probes(probes, number))

    def _kill_hung(self, sentences: dict[str, str], generation: int, *, is_shared: bool) -> None:
        for one in self._probed:
            self._supervisor.show_stacks(one.process, one.text)
        self._probed = []
        for process in self._supervisor.alive():
            if str(process.rank) in sentences and process.generation == generation:
                process.kill_as_hung(sentences[str(process.rank)], is_shared=is_shared)

    def _leave(self, why: str) -> None:
        self._log(f"this pod is no longer part of the job: {why}")
        self._client.disconnect()
        self.is_over = True
        self.culprit = Ending(rank=0, code=contract.EXIT_PEER_LOST, at=datetime.now(UTC), message=why)
        self._supervisor.kill()
