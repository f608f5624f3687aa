"""Conditions as in the Kubernetes API conventions: Accepted, PodsReady, Healthy, Suspended, Complete, Failed.

Stalled comes with Failed: kstatus, by which Flux and others judge objects of any kind, knows only that name.

A condition is absent until it applies. lastTransitionTime changes only with the status of the condition.
"""

import re
from typing import NamedTuple

from dtj_operator.model import names, ranges, times
from dtj_operator.model.children import Refusal
from dtj_operator.model.json import Json
from dtj_operator.model.memory import FINAL, RECOVERING, RUNNING, SUCCEEDED, SUSPENDED, TERMINATING
from dtj_operator.model.views import PodView
from dtj_operator.plan import blame, starting
from dtj_operator.plan.actions import Fail, Restart, Resume, Succeed, Suspend, Verdict, starts_new_attempt
from dtj_operator.plan.cautions import GANGS_OFF, cautions, unknown_topology
from dtj_operator.plan.gang import placed_one_by_one, unreleased, waits_for
from dtj_operator.plan.policies.restart import backoff_until
from dtj_operator.plan.policies.size import participating
from dtj_operator.plan.policies.suspend import held
from dtj_operator.plan.queue import QUEUED
from dtj_operator.plan.report.attempt import done_before, remaining
from dtj_operator.plan.report.degraded import degraded_by
from dtj_operator.plan.snapshot import Snapshot
from dtj_operator.plan.unsupported import REASON as UNSUPPORTED

CONDITION_MESSAGE_LIMIT = 1000  # characters; in a large cluster the scheduler's message is very long
_UNPULLABLE = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
)
# The last one: of a sidecar, for which the other containers wait.
_UNSTARTABLE = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff")

# Reasons of PodsReady=False that are wanted, or pass by themselves. All others mean that the job is blocked.
UNBLOCKED = frozenset(("Starting", "Suspended", QUEUED, "Evicted", "Deactivated", TERMINATING, "Finished"))


class State(NamedTuple):
    """What a condition says."""

    status: bool
    reason: str
    message: str


# What to do. Of an existing job neither containers nor volumes nor pull secrets can be changed: see the CRD.
_FIXES = {
    "Unschedulable": "add or free the missing resources, or delete the job and create it with smaller "
    "requests (--cpu, --memory and --gpus of kubectl dtj submit)",
    GANGS_OFF: "switch on the feature gate GenericWorkload of kube-scheduler, in Kubernetes 1.36 also "
    "GangScheduling",
    "ImagePullFailed": "push the image if the registry lacks it (the kubelet tries again), or delete the job "
    "and create it with the right image or imagePullSecrets",
}
# Words of the scheduler that name what no capacity would solve, each with what to do; the first one counts.
_MISPLACED = (
    (
        r'persistentvolumeclaim "\S+" not found',
        "create the claim, or delete the job and create it with the right name",
    ),
    ("unbound immediate PersistentVolumeClaims", "kubectl describe pvc says why the claim is not bound"),
    ("Insufficient", _FIXES["Unschedulable"]),
    (
        "were unschedulable",  # cordoned; whether the template matches these nodes is not examined
        "uncordon the nodes that kubectl get nodes shows as SchedulingDisabled, or add nodes that match the "
        "template",
    ),
    (
        "node affinity/selector|untolerated taint",
        "suspend the job to correct nodeSelector, affinity or tolerations in its template, or add nodes that "
        "match them",
    ),
)
_RELEASE = "switch on the feature gate GenericWorkload of kube-controller-manager, or remove its finalizers"
# Words of the kubelet about a container that it cannot create.
_UNCREATED = (
    # Our default if the template does not set it; many images with torch run as root.
    (
        "runAsNonRoot",
        "delete the job and create it with runAsUser (such as 1000) or runAsNonRoot: false in "
        "spec.template.spec.securityContext (--user of kubectl dtj submit)",
    ),
    (
        r'(secret|configmap) "\S+" not found|find key .* in (Secret|ConfigMap)',
        "create what is missing (the pod then starts), or delete the job and create it with the right name",
    ),
)


def obstacle(s: Snapshot, verdict: Verdict | None, phase: str) -> Refusal | None:
    """Why pods cannot start or end, as the cluster reports it, or what the job waits for in its queue."""
    if phase in FINAL or starts_new_attempt(verdict):
        return None
    ends = phase in (SUSPENDED, TERMINATING)
    late = [pod for pod in (s.owned if ends else s.obsolete) if s.overdue(pod)]
    stuck = [pod for pod in late if ends or _is_waited_for(s, pod)]
    if stuck:
        return _terminating(s, stuck)
    if s.refusal is not None:
        return s.refusal
    if ends:
        return _waits_in_queue(s, verdict) if phase == SUSPENDED else None
    return _cannot_start(s)


def _cannot_start(s: Snapshot) -> Refusal | None:
    """What keeps pods from their nodes, or their containers from starting."""
    unplaced = s.missing or any(not pod.node for pod in s.current.values())
    if unplaced and s.job.topology is not None and s.job.topology.required:
        unknown = unknown_topology(s)
        if unknown is not None:
            return unknown
    gang = waits_for(s)
    if gang:
        return _blocked("Unschedulable", f"the job's pods are scheduled only together: {gang}{_of_a_pod(s)}")
    left = unreleased(s)
    if left:
        what = f"PodGroup {left} of a deleted job of this name still exists, although it has no pods"
        return _blocked(GANGS_OFF, what, _RELEASE)
    partly = placed_one_by_one(s)
    if partly:
        return _blocked(GANGS_OFF, f"{partly}{_of_a_pod(s)}")
    waiting = sorted((pod for pod in s.current.values() if not pod.deleting), key=lambda pod: pod.index)
    return next((found for pod in waiting if (found := _obstacle(s, pod)) is not None), None)


def ending(s: Snapshot) -> str | None:
    """How many pods of a suspended job are not gone yet; None: it has none."""
    left = sum(not pod.ended for pod in s.owned)
    if not left:
        return None
    return f"{pods_are(left)} still terminating; the grace period is {s.job.grace_s} s"


def pods_are(number: int) -> str:
    """The beginning of a sentence about pods."""
    return "1 pod is" if number == 1 else f"{number} pods are"


def shortage(s: Snapshot) -> str | None:
    """The message if the attempt is smaller than spec.replicas because pods could not start, else None."""
    known = s.memory.private.shortage
    if known is None or s.size >= s.job.replicas:
        return None
    again = times.rfc3339(known.retry_at)
    return f"only {s.size} of {s.job.replicas} pods could start; retrying with all pods at {again}"


def held_back(s: Snapshot) -> str | None:
    """Why replicas of an elastic job that have joined do not train, by its agents."""
    return s.answer.waiting if s.answer is not None and s.memory.phase == RUNNING else None


def conditions(s: Snapshot, verdict: Verdict | None, phase: str, blocked: Refusal | None) -> list[Json]:
    """All conditions after this reconcile, in a fixed order."""
    failed = State(True, verdict.reason, verdict.message) if isinstance(verdict, Fail) else None
    found = {
        "Accepted": _accepted(s),
        "PodsReady": _pods_ready(s, verdict, phase, blocked),
        "Healthy": _healthy(s, verdict, phase),
        "Suspended": _suspended(s, verdict, phase),
        "Complete": _complete(s, verdict),
        "Failed": failed,
        "Stalled": failed,
    }
    return [_condition(s, kind, state) for kind, state in found.items() if state is not None]


def terminating(s: Snapshot, blocked: Refusal | None, message: str) -> list[Json]:
    """The conditions of a job that is being deleted: it does not run any more."""
    found = _condition(s, "PodsReady", State(False, blocked.reason if blocked else TERMINATING, message))
    others = [c for c in s.memory.raw.get("conditions") or () if c["type"] not in ("PodsReady", "Healthy")]
    return [found, *others]


def rejected(s: Snapshot, message: str) -> list[Json]:
    """The stored conditions, and one that says what in the spec this operator does not support."""
    found = _condition(s, "Accepted", State(False, UNSUPPORTED, message))
    return [found, *(c for c in s.memory.raw.get("conditions") or () if c.get("type") != "Accepted")]


def _waits_in_queue(s: Snapshot, verdict: Verdict | None) -> Refusal | None:
    """What a suspended job waits for; None if only its user suspended it."""
    why = verdict if isinstance(verdict, Suspend) else held(s)
    if why is None or why.reason == Suspend.reason or isinstance(verdict, Resume):
        return None
    return Refusal(reason=why.reason, message=why.message)


def _accepted(s: Snapshot) -> State | None:
    """Absent unless this job's spec was not supported once."""
    if not s.memory.condition("Accepted"):
        return None
    return State(True, "Accepted", "the operator supports all values of the spec")


def _pods_ready(s: Snapshot, verdict: Verdict | None, phase: str, blocked: Refusal | None) -> State:
    if phase in FINAL:
        return State(False, "Finished", f"the job has {phase.lower()}")
    if blocked is not None:
        return State(False, blocked.reason, blocked.message)
    if phase == SUSPENDED:
        return State(False, "Suspended", ending(s) or "the job has no pods while it is suspended")
    ready = len(done_before(s, verdict) | {pod.index for pod in remaining(s, verdict) if pod.ready})
    summary = f"{ready} of {s.job.replicas} pods are ready"
    short = shortage(s)
    if short is not None:
        return State(False, "Unschedulable", f"{summary}; {short}")
    warned = "".join(f"; {caution.message}" for caution in cautions(s))
    if ready >= s.job.replicas:
        return State(True, "AllReady", f"{summary}{warned}")
    return State(False, "Starting", f"{summary}{_waits(s)}{warned}")


def _healthy(s: Snapshot, verdict: Verdict | None, phase: str) -> State | None:
    """Absent while the job waits for its first pods."""
    if isinstance(verdict, Restart) and not (verdict.same_incident and s.memory.phase == RECOVERING):
        return State(False, "Recovering", verdict.fault.sentence)
    if isinstance(verdict, Fail):
        return State(False, "Failed", verdict.message)
    if phase == RUNNING:
        return _healthy_while_running(s)
    if phase == SUCCEEDED:
        return State(True, "Finished", "the job has succeeded")
    known = s.memory.condition("Healthy")
    if phase != RECOVERING or not known:
        return None
    return State(False, "Recovering", known["message"])


def _healthy_while_running(s: Snapshot) -> State:
    if wrong := degraded_by(s):
        return State(False, *wrong)
    started = {index for index, pod in participating(s).items() if s.started(pod)}
    present, desired = len(started | s.memory.done), s.job.replicas
    if present < desired:
        summary = f"{present} of {desired} replicas are running or finished"
        return State(True, "RunningWithFewer", f"{summary}; waiting for {desired - present}")
    if why := held_back(s):
        return State(True, "RunningWithFewer", why)
    return State(True, "Running", _running_message(s))


def _running_message(s: Snapshot) -> str:
    """The message of a running job; it keeps the last in-place restart for the rest of the attempt."""
    summary = "all replicas are running or finished"
    fault = blame.in_place_fault(s)
    if fault is not None:
        return f"{summary}; last in-place restart: {fault.sentence}"
    known = s.memory.condition("Healthy").get("message", "")
    return known if known.startswith(f"{summary}; ") and s.memory.phase == RUNNING else summary


def _suspended(s: Snapshot, verdict: Verdict | None, phase: str) -> State | None:
    why = held(s) if verdict is None and phase == SUSPENDED else verdict
    if isinstance(why, Suspend):
        return State(True, why.reason, why.message)
    if isinstance(verdict, Resume):
        return State(False, "Resumed", verdict.message)
    known = s.memory.condition("Suspended")
    if not known:
        return None
    if isinstance(verdict, Succeed | Fail):
        return State(False, "Finished", "the job has finished")
    return State(known["status"] == "True", known["reason"], known["message"])


def _complete(s: Snapshot, verdict: Verdict | None) -> State | None:
    if not isinstance(verdict, Succeed):
        return None
    which = s.job.success
    who = f"replica{'s' * (len(which) > 1)} {ranges.text(which, 500)}" if which else "all ranks"
    return State(True, verdict.reason, f"{who} exited with code 0")


def _condition(s: Snapshot, kind: str, state: State) -> Json:
    known, status = s.memory.condition(kind), str(state.status)
    since = known["lastTransitionTime"] if known.get("status") == status else times.rfc3339(s.now)
    return {
        "type": kind,
        "status": status,
        "reason": state.reason,
        "message": state.message[:CONDITION_MESSAGE_LIMIT],
        "lastTransitionTime": since,
        "observedGeneration": s.job.generation,
    }


def _is_waited_for(s: Snapshot, old: PodView) -> bool:
    """Whether its name is needed, or every pod of the attempt waits for its end."""
    return s.is_of_another_attempt(old) or old.index in s.missing


def _terminating(s: Snapshot, stuck: list[PodView]) -> Refusal:
    """What blocks the job if pods do not terminate, and how to help."""
    pod = min(stuck, key=lambda pod: pod.index)
    more = f" (and {len(stuck) - 1} more)" if len(stuck) > 1 else ""
    if pod.held_by:
        message = f"pod {pod.name}{more} has ended, but its finalizer {pod.held_by} keeps it"
        fix = f"its controller must remove it: kubectl get pod {pod.name} -n {pod.namespace} -o yaml"
        return _blocked("PodTerminating", message, fix)
    where = f" on node {pod.node}" if pod.node else ""
    since = "" if pod.grace_ends_at is None else f" at {times.rfc3339(pod.grace_ends_at)}"
    limit_s = s.recovery.termination_s
    then = "recovery.terminationSeconds is Never, so the job waits for its end"
    if limit_s is not None:
        then = f"on a Ready node it is force-deleted {limit_s} s after that (recovery.terminationSeconds)"
    command = f"kubectl delete pod {pod.name} -n {pod.namespace} --force --grace-period=0"
    message = f"pod {pod.name}{where}{more} does not terminate: its grace period ended{since}; {then}"
    return Refusal(reason="PodTerminating", message=f"{message}; to do it at once: {command}")


def _obstacle(s: Snapshot, pod: PodView) -> Refusal | None:
    if pod.phase != "Pending":
        return None
    if (unfit := pod.unschedulable) is not None:
        fix = _first(_MISPLACED, unfit.message)
        return _blocked("Unschedulable", f"pod {pod.name} is unschedulable: {unfit.message}", fix)
    for container in pod.containers:
        where = f"container {container.name} of pod {pod.name}"
        if container.waiting in _UNPULLABLE:
            return _blocked("ImagePullFailed", f"{where}: {container.waiting}: {container.message}")
        if container.waiting in _UNSTARTABLE:
            fix = _first(_UNCREATED, container.message)
            return _blocked("PodRejected", f"{where}: {container.waiting}: {container.message}", fix)
    if starting.waits_for(s, pod, starting.SLOW_START_S):
        where = f"pod {pod.name} on node {pod.node}"
        return _blocked(
            "ContainerCreating",
            f"{where}: volumes or network not ready {starting.SLOW_START_S:.0f} s after scheduling",
            starting.fix(s, pod),
        )
    return None


def _first(fixes: tuple[tuple[str, str], ...], said: str) -> str | None:
    return next((fix for words, fix in fixes if re.search(words, said)), None)


def _of_a_pod(s: Snapshot) -> str:
    """What the scheduler says about one of the gang's pods: more than it says about the PodGroup."""
    said = ((pod, pod.unschedulable) for _, pod in sorted(s.current.items()))
    return next((f"; pod {pod.name}: {found.message}" for pod, found in said if found is not None), "")


def _blocked(reason: str, message: str, fix: str | None = None) -> Refusal:
    fix = fix or _FIXES.get(reason)
    return Refusal(reason=reason, message=f"{message}; {fix}" if fix else message)


def _waits(s: Snapshot) -> str:
    """What the pods wait for, if nothing blocks them."""
    left = sum(pod.deleting and _is_waited_for(s, pod) for pod in s.obsolete)
    if left:
        return f"; {pods_are(left)} still terminating"
    until = backoff_until(s)
    if s.missing and until > s.now:
        return f"; new pods are created after the back-off, at {times.rfc3339(until)}"
    unplaced = [pod.condition("PodScheduled") for pod in s.current.values() if not pod.node]
    if any(found is not None and found.reason == "SchedulingGated" for found in unplaced):
        return "; waiting for their scheduling gates"
    scheduler = s.job.template["spec"].get("schedulerName", names.DEFAULT_SCHEDULER)
    unseen = unplaced.count(None)
    if unseen:
        return f"; {scheduler} has not tried to place {unseen} of them yet"
    late = starting.noted(s)
    return f"; {late}" if late else ""
