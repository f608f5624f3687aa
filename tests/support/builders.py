"""Builders of jobs and pods for tests. Every method returns a copy, so rows of a table can share a base.

The defaults are the simplest case: a new job of one replica with one process, without pods or status.
"""

import json
from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgspec

from dtj_operator.model import exit_report, times
from dtj_operator.model.agent_status import InPlace, Progress
from dtj_operator.model.children import Child, Refusal
from dtj_operator.model.memory import Memory
from dtj_operator.model.spec import Job, parse
from dtj_operator.model.views import (
    AdmissionView,
    ConditionView,
    ContainerView,
    PodGroupView,
    PodSetView,
    PodView,
    WorkloadView,
)
from dtj_operator.plan import queue
from dtj_operator.plan.children.workload import asked_replicas, workload_name
from dtj_operator.plan.snapshot import QueueFacts, Snapshot

Json = dict[str, Any]

NOW = 1_800_000_000.0  # a whole second, so that conversion to RFC 3339 and back is exact
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
NAMESPACE = "team-a"
NAME = "digits"


def at(offset_s: float) -> str:
    """Return NOW plus an offset as an RFC 3339 timestamp."""
    return times.rfc3339(NOW + offset_s)


@dataclass(frozen=True)
class PodBuilder:
    """One pod of the builder's job."""

    pod: PodView

    def _with(self, **changes: Any) -> Self:
        return replace(self, pod=msgspec.structs.replace(self.pod, **changes))

    def seen(self, **moments: float) -> Self:
        """Set since when the operator has seen states of it, whatever the pod's own timestamps say."""
        return self._with(seen=msgspec.structs.replace(self.pod.seen, **moments))

    def running(self) -> Self:
        ready = ConditionView(type="Ready", status="True")
        return self._with(phase="Running", conditions=(ready,), containers=(ContainerView(name="trainer"),))

    def succeeded(self, message: str = "") -> Self:
        end = _ended(0, NOW, "Completed", message)
        return self._with(phase="Succeeded", conditions=(), containers=(end,))

    def exited(self) -> Self:
        """Its container has exited, but the kubelet has not updated the phase of the pod yet."""
        end = _ended(0, NOW, "Completed", "")
        return self._with(phase="Running", conditions=(), containers=(end,))

    def crashed(self, code: int = 1, *, at: float = NOW, message: str = "", reason: str = "Error") -> Self:
        end = _ended(code, at, reason, message)
        return self._with(phase="Failed", conditions=(), containers=(end,)).seen(exited=at)

    def beside(self, name: str, code: int) -> Self:
        """Another container has exited with this code."""
        other = msgspec.structs.replace(_ended(code, NOW, "Error", ""), name=name)
        return self._with(containers=(*self.pod.containers, other))

    def beside_sidecar(self, **state: Any) -> Self:
        """An init container that keeps running (restartPolicy Always) is in this state."""
        sidecar = ContainerView(name="proxy", init=True, **state)
        return self._with(containers=(sidecar, *self.pod.containers))

    def reported(self, code: int = 1, *, at: float = NOW, **fields: Any) -> Self:
        """Crashed, with the JSON report that a trainer writes when it exits."""
        report = {"exitCode": code, "generation": 0, "at": times.rfc3339(at), **fields}
        return self.crashed(code, at=at, message=json.dumps(report))

    def waiting(self, reason: str, message: str = "") -> Self:
        return self._with(containers=(ContainerView(name="trainer", waiting=reason, message=message),))

    def unschedulable(self, message: str = "no capacity", *, since: float = NOW) -> Self:
        condition = ConditionView(
            type="PodScheduled",
            status="False",
            reason="Unschedulable",
            message=message,
            last_transition_time=times.rfc3339(since),
        )
        return self._with(conditions=(condition,)).seen(unschedulable=since)

    def disrupted(self, reason: str = "EvictionByEvictionAPI", *, since: float | None = None) -> Self:
        condition = ConditionView(
            type="DisruptionTarget",
            status="True",
            reason=reason,
            message="evicted",
            last_transition_time=None if since is None else times.rfc3339(since),
        )
        return self._with(conditions=(*self.pod.conditions, condition))

    def spared(self) -> Self:
        """Was to be disrupted, but was not."""
        condition = ConditionView(type="DisruptionTarget", status="False", message="preempting")
        return self._with(conditions=(*self.pod.conditions, condition))

    def refused(self, reason: str) -> Self:
        """Rejected by its kubelet: no container has run."""
        return self._with(phase="Failed", reason=reason, conditions=(), containers=())

    def evicted(self, message: str) -> Self:
        """Its kubelet has stopped it, and says why."""
        return self._with(reason="Evicted", message=message)

    def deleting(self, *, since: float | None = None) -> Self:
        """Asked to terminate, then with a grace period of 30 s."""
        if since is None:
            return self._with(deleting=True)
        return self._with(deleting=True, grace_s=30, grace_ends_at=since + 30)

    def held_by(self, finalizer: str) -> Self:
        """Its kubelet is done with it, but this finalizer keeps it."""
        return self._with(held_by=finalizer)

    def overdue(self, for_s: float = 0) -> Self:
        """Terminating, and for this long after it should have been gone."""
        since = NOW - 30 - 10 - for_s
        return self._with(deleting=True, grace_s=30, grace_ends_at=since + 30).seen(terminating=since)

    def avoiding(self) -> Self:
        """Created while its job avoided nodes."""
        return self._with(avoids_nodes=True)

    def on(self, node: str) -> Self:
        return self._with(node=node)

    def reachable(self, address: str) -> Self:
        return self._with(address=address)

    def attempt(self, number: int) -> Self:
        return self._with(attempt=number, uid=f"{self.pod.uid}-{number}")

    def placed(self, since: float) -> Self:
        """Bound to its node at this time."""
        condition = ConditionView(
            type="PodScheduled", status="True", last_transition_time=times.rfc3339(since)
        )
        return self._with(conditions=(*self.pod.conditions, condition)).seen(bound=since)

    def unprepared(self, *, placed: float) -> Self:
        """Bound to its node at this time; its volumes or its network are not ready."""
        scheduled = ConditionView(
            type="PodScheduled", status="True", last_transition_time=times.rfc3339(placed)
        )
        waiting = ConditionView(
            type="PodReadyToStartContainers", status="False", last_transition_time=times.rfc3339(placed)
        )
        return self._with(conditions=(scheduled, waiting)).seen(bound=placed)

    def with_uid(self, uid: str) -> Self:
        return self._with(uid=uid)

    def owned_by(self, uid: str) -> Self:
        return self._with(owner_uid=uid)

    def in_group(self, name: str) -> Self:
        return self._with(pod_group=name)


def _ended(code: int, at: float, reason: str, message: str) -> ContainerView:
    report = exit_report.parse(message)
    return ContainerView(
        name="trainer", exit_code=code, finished_at=at, reason=reason, message=message, report=report
    )


def pod(index: int = 0, *, attempt: int = 0, job: str = NAME) -> PodBuilder:
    view = PodView(
        namespace=NAMESPACE,
        name=f"{job}-{index}",
        uid=f"uid-{job}-{index}-{attempt}",
        job=job,
        owner_uid=UID,
        index=index,
        attempt=attempt,
    )
    return PodBuilder(view)


@dataclass(frozen=True, kw_only=True)
class JobBuilder:
    """A job in some state; `raw()` returns its custom resource, `snapshot()` the input of the planner."""

    spec: Json = field(default_factory=lambda: {"template": template()})
    status: Json = field(default_factory=dict)
    pods: tuple[PodView, ...] = ()
    known: Json = field(default_factory=dict)
    meta: Json = field(default_factory=dict)

    def wants(self, **fields: Any) -> Self:
        """Set fields of the spec, by their names in the custom resource."""
        return replace(self, spec={**self.spec, **fields})

    def named(self, name: str) -> Self:
        return replace(self, meta={**self.meta, "name": name})

    def edited(self, *, generation: int) -> Self:
        """The user has changed the spec until it had this generation."""
        return replace(self, meta={**self.meta, "generation": generation})

    def deleted(self, *finalizers: str) -> Self:
        return replace(self, meta={**self.meta, "deletionTimestamp": at(0), "finalizers": list(finalizers)})

    def recovery(self, **fields: Any) -> Self:
        return self.wants(recovery={**self.spec.get("recovery", {}), **fields})

    def replicas(self, count: int) -> Self:
        return self.wants(replicas=count)

    def elastic(self, lowest: int, highest: int) -> Self:
        return self.wants(elastic={"minReplicas": lowest, "maxReplicas": highest})

    def container(self, **fields: Any) -> Self:
        """Set fields of the training container."""
        inner = self.spec["template"]["spec"]
        first = {**inner["containers"][0], **fields}
        return self.pod_spec(containers=[first, *inner["containers"][1:]])

    def pod_spec(self, **fields: Any) -> Self:
        inner = self.spec["template"]
        return self.wants(template={**inner, "spec": {**inner["spec"], **fields}})

    def was(self, phase: str, **fields: Any) -> Self:
        """Set the stored status: this phase for the last minute, and other fields."""
        base = {"phase": phase, "attempt": 0, "startTime": at(-60), "lastTransitionTime": at(-60)}
        return replace(self, status={**base, **self.status, "phase": phase, **fields})

    def stored(self, status: Json) -> Self:
        """Set the whole stored status, such as one that a report returned."""
        return replace(self, status=status)

    def having(self, *pods: PodBuilder) -> Self:
        return replace(self, pods=tuple(builder.pod for builder in pods))

    def running(self) -> Self:
        """All pods are running, and so is the job's phase."""
        up = (
            pod(i, attempt=self.status.get("attempt", 0)).running()
            for i in range(self.spec.get("replicas", 1))
        )
        return self.was("Running").having(*up)

    def but(self, *changed: PodBuilder) -> Self:
        """Replace the pods that have the same indices."""
        new = {builder.pod.index: builder.pod for builder in changed}
        kept = tuple(view for view in self.pods if view.index not in new)
        return replace(self, pods=(*kept, *new.values()))

    def without(self, *indices: int) -> Self:
        return replace(self, pods=tuple(view for view in self.pods if view.index not in indices))

    def seeing(self, **fields: Any) -> Self:
        """Set what else is in the snapshot: service, network_policy, refusal, answer, now."""
        return replace(self, known={**self.known, **fields})

    def with_network(self) -> Self:
        return self.seeing(service=Child.PRESENT, network_policy=Child.PRESENT)

    def placed_as_gang(self, *groups: PodGroupView) -> Self:
        """The cluster serves PodGroups, and these exist."""
        return self.seeing(gang_api="scheduling.k8s.io/v1beta1", pod_groups=groups)

    def labelled(self, **labels: str) -> Self:
        """Set labels of Kueue, without their prefix; underscores stand for dashes."""
        added = {f"kueue.x-k8s.io/{name.replace('_', '-')}": value for name, value in labels.items()}
        return replace(self, meta={**self.meta, "labels": {**self.meta.get("labels", {}), **added}})

    def annotated(self, **annotations: str) -> Self:
        """Set annotations of Kueue, as `labelled` sets its labels."""
        added = {f"kueue.x-k8s.io/{name.replace('_', '-')}": value for name, value in annotations.items()}
        return replace(self, meta={**self.meta, "annotations": {**self.meta.get("annotations", {}), **added}})

    def in_queue(self, *workloads: WorkloadView, **facts: Any) -> Self:
        """The job has a queue, the cluster has Kueue, and these Workloads exist."""
        return self.labelled(queue_name="gpus").seeing(queue=QueueFacts(workloads=workloads, **facts))

    def workload(self, *true: str, **fields: Any) -> WorkloadView:
        """The Workload that the job asks for now; these of its conditions are True."""
        made = self.labelled(queue_name="gpus").job()
        assert made.queue is not None
        name = workload_name(made, made.queue)
        conditions = tuple(
            ConditionView(type=kind, status="True", reason=f"{kind}Reason", message=f"said {kind}")
            for kind in true
        )
        admission = AdmissionView(cluster_queue="all", pod_set="main") if "Admitted" in true else None
        asked = PodSetView(count=asked_replicas(made), spec=made.template["spec"])
        known: Json = {"job": NAME, "owner_uid": UID, "conditions": conditions, "admission": admission}
        given = {**known, "asked": asked, **fields}
        return WorkloadView(namespace=NAMESPACE, name=name, uid=f"uid-{name}", **given)

    def refused(self, reason: str, message: str = "no") -> Self:
        return self.seeing(refusal=Refusal(reason=reason, message=message))

    def answering(
        self,
        *,
        attempt: int = 0,
        in_place: int = 0,
        without_progress: int | None = None,
        of_newest_pod: int | None = None,
        **fields: Any,
    ) -> Self:
        """Replica 0's agent has answered."""
        restarts = InPlace(in_place=in_place, without_progress=without_progress, of_newest_pod=of_newest_pod)
        return self.seeing(answer=Progress(attempt=attempt, observed_at=NOW, restarts=restarts, **fields))

    def at_step(self, step: int, *, attempt: int = 0, total: int | None = None) -> Self:
        return self.answering(attempt=attempt, step=step, total_steps=total)

    def raw(self) -> Json:
        meta = {
            "namespace": NAMESPACE,
            "name": NAME,
            "uid": UID,
            "generation": 1,
            "resourceVersion": "7",
            **self.meta,
        }
        return {"metadata": meta, "spec": self.spec, "status": self.status}

    def job(self) -> Job:
        return parse(self.raw())

    def snapshot(self) -> Snapshot:
        now = self.known.get("now", NOW)
        fields = {"now": now, "monotonic": now, **self.known}
        facts, made = fields.pop("queue", QueueFacts()), self.job()
        children = {"Service": fields.pop("service", Child.ABSENT)}
        policy = fields.pop("network_policy", Child.ABSENT)
        if made.network.policy == "Isolated":
            children["NetworkPolicy"] = policy
        known = Snapshot(job=made, memory=Memory(self.status), pods=self.pods, children=children, **fields)
        return queue.with_facts(known, facts)


def pod_group(attempt: int = 0, min_count: int = 2, **fields: Any) -> PodGroupView:
    name = f"{NAME}-{attempt}"
    given = {"job": NAME, "owner_uid": UID, "min_count": min_count, **fields}
    return PodGroupView(namespace=NAMESPACE, name=name, uid=f"uid-{name}", **given)


def template(**container: Any) -> Json:
    return {"spec": {"containers": [{"name": "trainer", "image": "example.org/train:1", **container}]}}


def job() -> JobBuilder:
    return JobBuilder()
