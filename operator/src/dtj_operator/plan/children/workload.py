"""The Workload: what a job asks of its queue, in Kueue's API.

Its name has a hash of what it asks for. So a job that asks for something else gets another Workload and waits
for another admission, and a newer operator does not disturb jobs that run.
"""

import hashlib
import json
from collections.abc import Sequence

from dtj_operator.model import names, times
from dtj_operator.model.json import Json
from dtj_operator.model.spec import Job, Queue
from dtj_operator.plan.children.meta import metadata

POD_SET = "main"
_HASH_LENGTH = 8
_OUT_OF_TIME = "DeactivatedDueToMaximumExecutionTimeExceeded"


def asked_replicas(job: Job) -> int:
    """Number of replicas that the spec asks for; the queue may admit fewer."""
    return job.replicas if job.asked_replicas is None else job.asked_replicas


def workload_name(job: Job, queue: Queue) -> str:
    """Name of the Workload for the present spec."""
    if queue.workload:
        return queue.workload
    asked = [
        queue.name,
        queue.priority_class,
        queue.max_s,
        asked_replicas(job),
        job.min_replicas if job.elastic else None,
        job.template,
    ]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return f"{job.name}-{digest[:_HASH_LENGTH]}"


def priority_class(job: Job, queue: Queue) -> Json | None:
    """Reference to the class from which the Workload has its priority."""
    if queue.priority_class:
        return {"group": names.KUEUE, "kind": "WorkloadPriorityClass", "name": queue.priority_class}
    of_pods = job.template["spec"].get("priorityClassName")
    return {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": of_pods} if of_pods else None


def workload(job: Job, queue: Queue, priority: int | None) -> Json:
    """The Workload; an elastic job may be admitted with fewer replicas, but at least minReplicas.

    priority   of the class that the job names
    """
    count = asked_replicas(job)
    given = job.template.get("metadata") or {}
    about = {key: given[key] for key in ("labels", "annotations") if given.get(key)}
    pods: Json = {
        "name": POD_SET,
        "count": count,
        "topologyRequest": _topology_request(given.get("annotations") or {}),
        "template": {"metadata": about, "spec": {**job.template["spec"], "restartPolicy": "Never"}},
    }
    if job.min_replicas < count:
        pods["minCount"] = job.min_replicas
    spec: Json = {"queueName": queue.name, "podSets": [pods]}
    reference = priority_class(job, queue)
    if reference is not None:
        spec |= {"priorityClassRef": reference, "priority": priority}
    if queue.max_s is not None:
        spec["maximumExecutionTimeSeconds"] = queue.max_s
    return {
        "apiVersion": names.KUEUE_API,
        "kind": "Workload",
        "metadata": workload_metadata(job, workload_name(job, queue)),
        "spec": spec,
    }


def _topology_request(annotations: Json) -> Json:
    """Where Kueue places the pods; by the label, neighbours in rank are near each other."""
    request: Json = {"podIndexLabel": names.REPLICA_INDEX}
    if names.REQUIRED_TOPOLOGY in annotations:
        return request | {"required": annotations[names.REQUIRED_TOPOLOGY]}
    if names.PREFERRED_TOPOLOGY in annotations:
        return request | {"preferred": annotations[names.PREFERRED_TOPOLOGY]}
    if annotations.get(names.ANY_TOPOLOGY) == "true":
        return request | {"unconstrained": True}
    return request


def workload_metadata(job: Job, name: str) -> Json:
    meta = metadata(job, name)
    return meta | {"labels": {**meta["labels"], names.QUEUE_JOB_UID: job.uid}}


def status_change(raw: Json, conditions: Sequence[Json], *, releases: bool) -> Json:
    """The merge patch of a Workload's status that sets these conditions.

    releases   its quota is given back. The time that it ran counts towards its maximum; if it reached the
               maximum, it gets all of it again once it is activated again
    """
    status: Json = raw.get("status") or {}
    known = {each["type"]: each for each in status.get("conditions") or ()}
    after = known | {each["type"]: _since(known, each) for each in conditions}
    changes: Json = {"conditions": list(after.values())}
    if releases:
        changes["admission"] = None
        if (known.get("Evicted") or {}).get("reason") == _OUT_OF_TIME:
            return changes | {"accumulatedPastExecutionTimeSeconds": None}
        ran_s = _ran_s(known.get("Admitted"), conditions)
        if raw["spec"].get("maximumExecutionTimeSeconds") is not None and ran_s:
            before = status.get("accumulatedPastExecutionTimeSeconds") or 0
            changes["accumulatedPastExecutionTimeSeconds"] = before + ran_s
    return changes


def _since(known: Json, condition: Json) -> Json:
    """The condition with the time at which its status last changed."""
    before = known.get(condition["type"])
    if before is None or before["status"] != condition["status"]:
        return condition
    return {**condition, "lastTransitionTime": before["lastTransitionTime"]}


def _ran_s(admitted: Json | None, conditions: Sequence[Json]) -> int:
    """Seconds since the admission that ends."""
    moments = (times.parse(each["lastTransitionTime"]) for each in conditions if each["type"] == "Admitted")
    began = times.parse(admitted["lastTransitionTime"]) if admitted and admitted["status"] == "True" else None
    ends = next(moments, None)
    return 0 if began is None or ends is None else max(0, int(ends - began))
