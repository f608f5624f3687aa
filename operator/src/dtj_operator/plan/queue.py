"""Kueue: does the queue let the job run, and what does Kueue need to know?

A job with a queue has one Workload. The job has pods only while its Workload is admitted:

no Workload yet            suspended, until Kueue has admitted a new one
admitted                   runs; the pods get what the admission says; an elastic job has the admitted size
evicted or deactivated     suspended: its pods commit a checkpoint and end, then it gives the quota back
it asks for something else the same, and then a new Workload
finished                   the Workload says so, once no pod runs
"""

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from dtj_operator.model import names, times
from dtj_operator.model.children import Refusal
from dtj_operator.model.json import Json
from dtj_operator.model.memory import FINAL, SUCCEEDED, SUSPENDED
from dtj_operator.model.spec import Job, Queue
from dtj_operator.model.views import AdmissionView, ConditionView, PodSettings, WorkloadView
from dtj_operator.plan import prebuilt
from dtj_operator.plan.actions import Action, AdoptWorkload, Create, Delete, Suspend, UpdateWorkload
from dtj_operator.plan.children.workload import priority_class, workload, workload_metadata, workload_name
from dtj_operator.plan.snapshot import QueueFacts, Snapshot

QUEUED, UNAVAILABLE, INADMISSIBLE = "Queued", "QueueUnavailable", "Inadmissible"
PREBUILT_POLL_S = 10.0  # our watch does not show a Workload of others before the job owns it
# Kueue queues a Workload again by itself only after these; after the others it decides when.
_REQUEUED_AT_ONCE = ("Preempted", "NodeFailures")
# Reasons why Kueue cannot admit a Workload before someone changes something. The first is that of Kueue 0.19,
# where other causes are found by the words of the message, unless another flavor would do.
_UNFIT = ("Inadmissible", "Misconfigured", "Suspended", "ExceedsMaxQuota", "NoMatchingFlavor")
_TOO_LARGE, _NO_LEVEL, _WAITS = "> maximum capacity", "not contain the requested level", "unused quota"
_INACTIVE = "is inactive"
_DEACTIVATED = "Deactivated"  # Kueue appends the cause: DeactivatedDueToMaximumExecutionTimeExceeded


def current(job: Job, workloads: tuple[WorkloadView, ...]) -> WorkloadView | None:
    """The Workload for the present spec; it has no owner yet if another controller has made it."""
    if job.queue is None:
        return None
    name, owners = workload_name(job, job.queue), (job.uid, "") if job.queue.workload else (job.uid,)
    return next((w for w in workloads if w.name == name and w.owner_uid in owners), None)


def with_facts(s: Snapshot, facts: QueueFacts) -> Snapshot:
    """With these facts, and with the job as its queue admitted it: with as many replicas as got quota."""
    known, job = current(s.job, facts.workloads), s.job
    if job.elastic is not None:
        count = _admitted_before(s) if facts.problem else _admitted(job, known)
        if count is not None:
            job = msgspec.structs.replace(job, replicas=count, asked_replicas=job.replicas)
    return replace(s, job=job, queue=replace(facts, current=known))


def _admitted(job: Job, known: WorkloadView | None) -> int | None:
    """How many replicas got quota; None: as many as the spec asks for."""
    count = known.admission.count if known is not None and known.admission is not None else None
    return count if count is not None and job.min_replicas <= count < job.replicas else None


def _admitted_before(s: Snapshot) -> int | None:
    """How many replicas the queue has admitted, as far as a job that runs has recorded that."""
    if s.job.queue is None or s.memory.phase in ("", SUSPENDED):
        return None
    shortage = s.memory.private.shortage
    return s.memory.recorded_size if shortage is None else shortage.replicas


def is_unknown(s: Snapshot) -> bool:
    """Whether the job has a queue, and Kueue cannot be asked what it admits."""
    return s.job.queue is not None and bool(s.queue.problem)


def held(s: Snapshot) -> Suspend | None:
    """Why the queue does not let the job run; None: it may, or it has no queue.

    A running job stops only if Kueue says so, not because Kueue cannot be asked. Until then it keeps its size
    and gets no new pods: what Kueue has admitted may have changed.
    """
    queue = s.job.queue
    if queue is None:
        return None
    if s.queue.problem:
        return Suspend(UNAVAILABLE, s.queue.problem) if s.memory.phase in ("", SUSPENDED) else None
    known = s.queue.current
    if known is None or known.deleting:
        what = f"{queue.workload} exists" if queue.workload else f"is in queue {queue.name}"
        return Suspend(QUEUED, f"the job waits until its Workload {what}")
    return _not_admitted(s.job, queue, known)


def _not_admitted(job: Job, queue: Queue, known: WorkloadView) -> Suspend | None:
    """What the Workload says about why the job may not run; None: it may."""
    if not known.owner_uid:
        if lacks := prebuilt.shortfall(job, known.asked):
            fix = f"name another one in {names.PREBUILT_WORKLOAD}, or remove that"
            return Suspend(INADMISSIBLE, f"Workload {known.name} {lacks}; {fix}")
        return Suspend(QUEUED, f"the job waits until it owns Workload {known.name}")
    evicted = known.if_true("Evicted")
    if not known.active:
        why = f": {evicted.message}" if evicted is not None else ""
        fix = f"to queue it again, set spec.active of Workload {known.name} to true"
        return Suspend("Deactivated", f"queue {queue.name} does not run the job{why}; {fix}")
    if known.true("Finished"):
        return Suspend("Deactivated", f"Workload {known.name} is finished; delete it to queue the job again")
    if evicted is not None:
        return Suspend("Evicted", f"queue {queue.name} took back its quota: {evicted.message}")
    if known.true("Admitted"):
        return None
    reserved = known.condition("QuotaReserved")
    said = f": {reserved.message}" if reserved is not None and reserved.message else ""
    for name, message in known.unchecked if known.true("QuotaReserved") else ():
        said += f"; admission check {name} is not ready" + (f": {message}" if message else "")
    if reserved is not None and _needs_help(reserved):
        fix = _fix(job, reserved.message)
        return Suspend(INADMISSIBLE, f"queue {queue.name} cannot admit the job{said}; {fix}")
    return Suspend(QUEUED, f"the job waits in queue {queue.name}{said}")


def _needs_help(reserved: ConditionView) -> bool:
    unfit = any(words in reserved.message for words in (_TOO_LARGE, _NO_LEVEL))
    return reserved.reason in _UNFIT or (unfit and _WAITS not in reserved.message)


def _fix(job: Job, said: str) -> str:
    asked = (job.template.get("metadata") or {}).get("annotations") or {}
    level = next((key for key in (names.REQUIRED_TOPOLOGY, names.PREFERRED_TOPOLOGY) if key in asked), None)
    if _NO_LEVEL in said and level is not None:
        return (
            f"the annotation {level} of spec.template must name a level of its topology, not {asked[level]}"
        )
    more = (
        "`kubectl describe clusterqueue` says what it lacks, such as a flavor; " if _INACTIVE in said else ""
    )
    return f"{more}correct the queue or its quota, or name another queue in the label {names.QUEUE_NAME}"


def actions_while_suspended(s: Snapshot) -> tuple[Action, ...]:
    """Give the quota back once no pod is left, and ask for what the spec says now."""
    queue = s.job.queue
    if s.queue.problem or s.owned:  # pods that still end use the quota
        return ()
    known = s.queue.current
    wanted = None if s.job.suspend else known
    actions: list[Action] = [Delete(obsolete) for obsolete in _ours(s, other_than=wanted)]
    if queue is None or s.job.suspend:
        return tuple(actions)
    if known is None:
        if not queue.workload and obstacle(s) is None:
            actions.append(Create(workload(s.job, queue, s.queue.priority)))
    elif not known.owner_uid:
        if not prebuilt.shortfall(s.job, known.asked):
            actions.append(AdoptWorkload(known, workload_metadata(s.job, known.name)))
    elif known.admission is not None and not known.deleting and held(s) is not None and known.true("Evicted"):
        actions.append(UpdateWorkload(known, released(s, known), releases=True))
    return tuple(actions)


def actions_while_running(s: Snapshot) -> tuple[Action, ...]:
    """Tell Kueue whether the pods are ready; delete the Workload of a job that left its queue."""
    if s.queue.problem:
        return ()
    known = s.queue.current
    if known is None:
        return tuple(map(Delete, _ours(s, other_than=None))) if s.job.queue is None else ()
    done = s.memory.done | {index for index, pod in s.current.items() if pod.ready or s.succeeded(pod)}
    summary = f"{len(done)} of {s.job.replicas} pods are ready or have succeeded"
    return tell_ready(s, known, len(done) >= s.job.replicas, summary)


def tell_ready(s: Snapshot, known: WorkloadView, ready: bool, summary: str) -> tuple[Action, ...]:
    """Set the condition PodsReady of a Workload, which says whether all pods are ready or have succeeded."""
    before = known.condition("PodsReady")
    was = before.reason if before is not None else ""
    if ready:
        reason = "Recovered" if was in ("WaitForRecovery", "Recovered") else "Started"
    else:
        started = was in ("Started", "Recovered", "WaitForRecovery")
        reason = "WaitForRecovery" if started else "WaitForStart"
    if before is not None and (before.status, before.reason) == (str(ready), reason):
        return ()
    return (UpdateWorkload(known, (_condition(s, "PodsReady", ready, reason, summary),)),)


def actions_when_finished(s: Snapshot) -> tuple[Action, ...]:
    """Tell Kueue that the job is over, which frees the quota; no pod of it runs any more."""
    if not all(pod.ended for pod in s.owned):
        return ()
    if s.job.queue is None:  # its user removed the label, or its spec cannot be read
        return tuple(map(Delete, _ours(s, other_than=None)))
    known = s.queue.current
    if known is None or known.true("Finished"):
        return ()
    end = s.memory.condition("Complete") or s.memory.condition("Failed")
    reason = "Succeeded" if s.memory.phase == SUCCEEDED else "Failed"
    return (UpdateWorkload(known, (_condition(s, "Finished", True, reason, str(end.get("message", ""))),)),)


def obstacle(s: Snapshot) -> Refusal | None:
    """What the job, or its Workload, names and the cluster does not have, or that Kueue cannot be asked."""
    why = s.queue.problem if is_unknown(s) and s.memory.phase != SUSPENDED else s.queue.absent
    return Refusal(reason=UNAVAILABLE, message=why) if why else None


def requeue_at(s: Snapshot) -> float | None:
    """When to look again for a Workload that another controller makes."""
    known = s.queue.current
    waits = s.job.queue is not None and s.job.queue.workload and (known is None or not known.owner_uid)
    return s.now + PREBUILT_POLL_S if waits and not s.queue.problem else None


def needed_class(s: Snapshot) -> Json | None:
    """Reference to the priority class that must be read before the Workload is created."""
    queue = s.job.queue
    creates = queue is not None and s.queue.current is None and s.memory.phase == SUSPENDED and not s.owned
    return priority_class(s.job, queue) if queue is not None and creates and not s.job.suspend else None


def needed_flavors(s: Snapshot) -> tuple[str, ...]:
    """Names of the ResourceFlavors that must be read before pods are created."""
    known = s.queue.current
    if known is None or known.admission is None:
        return ()
    has_pods = not s.job.remote and s.memory.phase not in (SUSPENDED, *FINAL)
    return known.admission.flavors if has_pods and s.missing else ()


def pod_settings(s: Snapshot) -> PodSettings | None:
    """What the admission adds to new pods."""
    known = s.queue.current
    if known is None or known.admission is None or s.job.queue is None:
        return None
    found = _own_settings(s.job, s.job.queue, known.name, known.admission)
    for more in (*(s.queue.flavors[name] for name in known.admission.flavors), *known.updates):
        found = PodSettings(
            labels=found.labels | more.labels,
            annotations=found.annotations | more.annotations,
            node_selector=found.node_selector | more.node_selector,
            tolerations=found.tolerations + [t for t in more.tolerations if t not in found.tolerations],
        )
    return found


def chooses_nodes(s: Snapshot) -> bool:
    """Whether Kueue chooses the node of each pod, so that pods wait for it."""
    known = s.queue.current
    return known is not None and known.admission is not None and known.admission.chooses_nodes


def _own_settings(job: Job, queue: Queue, workload: str, admission: AdmissionView) -> PodSettings:
    labels = {
        names.POD_SET: admission.pod_set,
        names.LOCAL_QUEUE: queue.name,
        names.CLUSTER_QUEUE: admission.cluster_queue,
    }
    annotations = {names.POD_WORKLOAD: workload}
    asked = (job.template.get("metadata") or {}).get("annotations") or {}
    if admission.chooses_nodes and not {names.REQUIRED_TOPOLOGY, names.PREFERRED_TOPOLOGY} & set(asked):
        annotations[names.ANY_TOPOLOGY] = "true"
    return PodSettings(labels=labels, annotations=annotations)


def _ours(s: Snapshot, *, other_than: WorkloadView | None) -> Iterator[WorkloadView]:
    """Workloads that this job owns; never one that another controller has made for it."""
    kept = {other_than.name} if other_than is not None else set()
    named = {s.job.queue.workload} if s.job.queue is not None else set()
    for each in s.queue.workloads:
        if each.owner_uid == s.job.uid and not each.deleting and each.name not in kept | named:
            yield each


def released(s: Snapshot, known: WorkloadView) -> tuple[Json, ...]:
    """The conditions with which a Workload goes back into its queue."""
    evicted = known.condition("Evicted")
    reason, why = (evicted.reason, evicted.message) if evicted is not None else ("Pending", "")
    if reason.startswith(_DEACTIVATED):
        reason = _DEACTIVATED  # only with this one Kueue queues it again once it is active
    return (
        _condition(s, "Requeued", reason in _REQUEUED_AT_ONCE, reason, why),
        _condition(s, "QuotaReserved", False, "Pending", why),
        _condition(s, "Admitted", False, "NoReservation", "The workload has no reservation"),
        _condition(s, "PodsReady", False, "WaitForStart", "the job has no pods"),
    )


def _condition(s: Snapshot, kind: str, status: bool, reason: str, message: str) -> Json:
    return {
        "type": kind,
        "status": str(status),
        "reason": reason,
        "message": message,
        "lastTransitionTime": times.rfc3339(s.now),
    }
