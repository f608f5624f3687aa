"""A model of the cluster around plan(): an API server, a stale cache, kubelets, an operator that may crash.

The operator here does what reconcile, gather and apply do, in the same order, one call at a time, so that a
test can stop it between any two calls. The integration tests cover what the model cannot prove: real
conflicts and real watches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from dtj_operator.kube.pods import seen
from dtj_operator.model import names, times
from dtj_operator.model.agent_status import Progress
from dtj_operator.model.children import Child
from dtj_operator.model.memory import REPLICA, RUNNING
from dtj_operator.model.views import ConditionView, ContainerView, NodeView, PodView
from dtj_operator.plan.actions import (
    Action,
    Create,
    CreatePod,
    Decision,
    DeleteChild,
    DeletePod,
)
from dtj_operator.plan.planner import plan
from dtj_operator.plan.report import pace
from dtj_operator.plan.report.status import new_status
from dtj_operator.plan.snapshot import Snapshot
from tests.support.builders import NAMESPACE, NOW, UID, JobBuilder

Json = dict[str, Any]


class Crash(Exception):  # noqa: N818
    """The operator process crashed here."""


class CallFailed(Exception):  # noqa: N818
    """A call failed; the operator has to find out whether it had an effect."""


Fault = Callable[[str], str]  # what -> "" | "before" | "after" | "crash"


def no_fault(_: str) -> str:
    return ""


@dataclass
class World:
    """The real state (`pods`, `status`, `service`), and what the operator knows (`cache`)."""

    builder: JobBuilder
    now: float = NOW
    set_back: float = 0.0  # seconds by which the operator's clock was set back so far
    status: Json = field(default_factory=dict)
    pods: dict[str, PodView] = field(default_factory=dict)
    service: bool = False
    network_policy: bool = False
    cache: dict[str, PodView] = field(default_factory=dict)
    history: list[Json] = field(default_factory=list)  # every status ever stored
    overlaps: list[str] = field(default_factory=list)
    clock: int = 0  # of uids and resource versions
    answer: Progress | None = None  # the last answer of replica 0's agent
    nodes: dict[str, NodeView] = field(
        default_factory=lambda: {name: NodeView(name=name) for name in ("w0", "w1", "w2")}
    )

    @property
    def monotonic(self) -> float:
        return self.now + self.set_back

    def scope(self, status: Json) -> str:
        """What a recovery restarts, by this status."""
        return replace(self.builder, status=status).snapshot().scope

    # --- the API server

    def tick(self) -> str:
        self.clock += 1
        return str(self.clock)

    def create(self, body: Json) -> PodView | None:
        """Return the new pod, or None if the name is taken."""
        meta = body["metadata"]
        if meta["name"] in self.pods:
            return None
        attempt = int(meta["labels"][names.ATTEMPT])
        living = [
            pod
            for pod in self.pods.values()
            if pod.attempt != attempt and pod.phase in ("Pending", "Running")
        ]
        self.overlaps += [f"{meta['name']}@{attempt} beside {pod.name}@{pod.attempt}" for pod in living]
        if self.status.get("phase") == RUNNING and self.scope(self.status) != REPLICA:
            self.overlaps.append(f"{meta['name']}@{attempt} joins an attempt that has started to train")
        view = PodView(
            namespace=NAMESPACE,
            name=meta["name"],
            uid=f"pod-{self.tick()}",
            version=str(self.clock),
            job=meta["labels"][names.JOB_NAME],
            owner_uid=UID,
            index=int(meta["labels"][names.REPLICA_INDEX]),
            attempt=attempt,
        )
        self.pods[view.name] = view
        return view

    def delete(self, pod: PodView, grace_s: int | None) -> PodView | None:
        """Return what is left: a running pod gets its grace period, any other pod is gone at once."""
        known = self.pods.get(pod.name)
        if known is None or known.uid != pod.uid:
            return None
        if known.phase != "Running" or grace_s == 0:
            del self.pods[pod.name]
            return None
        return self.change(pod.name, deleting=True)

    def change(self, name: str, **fields: Any) -> PodView:
        self.pods[name] = msgspec.structs.replace(self.pods[name], version=self.tick(), **fields)
        return self.pods[name]

    # --- kubelets and people

    def run(self, name: str) -> None:
        ready = ConditionView(type="Ready", status="True")
        bound = ConditionView(
            type="PodScheduled", status="True", last_transition_time=times.rfc3339(self.now)
        )
        ready_nodes = [node for node in self.nodes if self.nodes[node].ready]
        self.change(
            name,
            phase="Running",
            node=ready_nodes[self.pods[name].index % len(ready_nodes)],
            conditions=(bound, ready),
            containers=(ContainerView(name="trainer"),),
        )

    def has_kubelet(self, pod: PodView) -> bool:
        """Whether its kubelet is alive; a dead kubelet neither stops a pod nor confirms that it is gone."""
        return not pod.node or self.nodes[pod.node].ready

    def lose(self, node: str) -> None:
        self.nodes[node] = NodeView(name=node, ready=False, away_since=self.monotonic)

    def regain(self, node: str) -> None:
        self.nodes[node] = NodeView(name=node)

    def make_unschedulable(self, name: str) -> None:
        condition = ConditionView(
            type="PodScheduled",
            status="False",
            reason="Unschedulable",
            message="no capacity",
            last_transition_time=times.rfc3339(self.now),
        )
        self.change(name, conditions=(condition,))

    def end(self, name: str, code: int) -> None:
        ended = ContainerView(name="trainer", exit_code=code, finished_at=self.now)
        self.change(name, phase="Failed" if code else "Succeeded", conditions=(), containers=(ended,))

    def remove(self, name: str) -> None:
        del self.pods[name]

    # --- the operator

    def deliver(self, name: str) -> None:
        """The watch brings the cache up to date about one pod."""
        if name in self.pods:
            self.observe(self.pods[name])
        else:
            self.cache.pop(name, None)

    def observe(self, pod: PodView) -> None:
        self.cache[pod.name] = seen(pod, self.cache.get(pod.name), self.monotonic)

    def relist(self) -> None:
        self.cache = {
            name: seen(pod, self.cache.get(name), self.monotonic) for name, pod in self.pods.items()
        }

    def restart_operator(self) -> None:
        """A new process: it has seen nothing before now."""
        self.cache = {}
        self.relist()
        for name, node in self.nodes.items():
            if not node.ready:
                self.lose(name)

    def snapshot(self) -> Snapshot:
        builder = replace(self.builder, status=self.status, pods=tuple(self.cache.values()))
        children = {
            "service": Child.PRESENT if self.service else Child.ABSENT,
            "network_policy": Child.PRESENT if self.network_policy else Child.ABSENT,
        }
        clocks = {"now": self.now, "monotonic": self.monotonic}
        of_attempt = self.answer is not None and self.answer.attempt == self.status.get("attempt")
        answer = self.answer if of_attempt else None
        return builder.seeing(**clocks, answer=answer, nodes=self.nodes, **children).snapshot()

    def reconcile(self, fault: Fault = no_fault) -> Decision:
        """One reconcile. Raises Crash or CallFailed if `fault` says so."""
        s = self.snapshot()
        if s.vanished:
            self.relist()
            s = self.snapshot()
        decision = plan(s)
        for action in decision.actions:
            self._act(action, fault)
        after = s.after(tuple(self.cache.values()), decision.refusal)
        new = new_status(after, decision.verdict)
        pods_created = any(isinstance(action, CreatePod) for action in decision.actions)
        since = self.now - pace.BATCH_S  # the longest delay is over
        due = pace.write_at(
            s.memory.raw,
            new,
            now=self.now,
            last_write=0,
            progress_due=True,
            stale_since=since,
            pods_created=pods_created,
        )
        if due is not None and due <= self.now:
            with _failing(fault("status")) as happens:
                if happens:
                    self.status = new
                    self.history.append(new)
        return decision

    def _act(self, action: Action, fault: Fault) -> None:
        match action:
            case CreatePod(body=body):
                with _failing(fault("create")) as happens:
                    made = self.create(body) if happens else None
                occupant = made or self.pods.get(body["metadata"]["name"])
                if occupant is not None:
                    self.observe(occupant)
            case DeletePod(pod, grace_s):
                with _failing(fault("delete")) as happens:
                    left = self.delete(pod, grace_s) if happens else None
                if left is not None:
                    self.observe(left)
                elif self.cache.get(pod.name, pod).uid == pod.uid:
                    self.cache.pop(pod.name, None)
            case Create(body):
                self._have(body["kind"], True)
            case DeleteChild(kind):
                self._have(kind, False)

    def _have(self, kind: str, exists: bool) -> None:
        if kind == "Service":
            self.service = exists
        else:
            self.network_policy = exists


class _failing:  # noqa: N801 - reads as a verb: with failing(...)
    """Apply the effect of a call unless it fails before that, then fail as requested."""

    def __init__(self, how: str) -> None:
        self._how = how

    def __enter__(self) -> bool:
        return self._how in ("", "after", "crash")

    def __exit__(self, *error: object) -> None:
        if self._how == "crash":
            raise Crash
        if self._how:
            raise CallFailed


def run_until_stable(world: World, limit: int = 200) -> Iterator[Decision]:
    """Reconcile without further faults, as requeued; watches deliver, and terminating pods terminate."""
    for _ in range(limit):
        for name in [pod.name for pod in world.pods.values() if pod.deleting and world.has_kubelet(pod)]:
            world.remove(name)
        world.relist()
        before = dict(world.status), dict(world.pods), world.service, world.network_policy
        decision = world.reconcile()
        yield decision
        if decision.requeue_at is not None and decision.requeue_at > world.now:
            world.now = decision.requeue_at
            continue
        if before == (world.status, world.pods, world.service, world.network_policy):
            return
        world.now += 1
    raise AssertionError(f"not stable after {limit} reconciles: {world.status}")
