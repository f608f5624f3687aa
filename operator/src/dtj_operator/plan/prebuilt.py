"""Whether a Workload that another controller has made asks its queue for all that the job will use.

Else a job could run on the quota of a smaller one, whose Workload has lost its owner: that of any kind, after
`kubectl delete --cascade=orphan`. Kueue may have added to a Workload what the template leaves open, such as
requests, so each amount is only a least one.
"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from dtj_operator.model import quantity
from dtj_operator.model.json import Json
from dtj_operator.model.spec import Job
from dtj_operator.model.views import PodSetView
from dtj_operator.plan.children.workload import asked_replicas

_UNKNOWN = Decimal("Infinity")  # an amount in a form of Kubernetes that we do not read


def shortfall(job: Job, asked: PodSetView | None) -> str:
    """What the Workload lacks, as the end of a sentence about it; empty: nothing."""
    if asked is None:
        return "has no pods"
    if asked.count < (count := asked_replicas(job)):
        return f"is for {asked.count} of the {count} pods of the job"
    pod = job.template["spec"]
    wanted, known = dict(_amounts(pod, _UNKNOWN)), dict(_amounts(asked.spec, Decimal(0)))
    for (kind, container, resource), amount in wanted.items():
        if known.get((kind, container, resource), Decimal(0)) < amount:
            place = f"container {container}" if container else "a pod"
            return f"has less {resource} for {place} than the job"
    # The amounts of a pod would count instead of those of its containers.
    if any(not container for _, container, _ in known.keys() - wanted.keys()):
        return "has resources for a whole pod, which the template does not have"
    same_claims = (asked.spec.get("resourceClaims") or []) == (pod.get("resourceClaims") or [])
    return "" if same_claims else "has other resourceClaims than the job"


def _amounts(pod: Json, unreadable: Decimal) -> Iterator[tuple[tuple[str, str, str], Decimal]]:
    """Yield the amounts of a pod's resources by (list and restart policy, container, resource)."""
    places: list[tuple[str, Any]] = [("pod", {"resources": pod.get("resources")})]
    for kind in ("containers", "initContainers"):
        places += [(f"{kind} {each.get('restartPolicy')}", each) for each in pod.get(kind) or ()]
    for kind, each in places:
        resources = each.get("resources") or {}
        for name, amount in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            found = quantity.parse(amount)
            yield (kind, str(each.get("name", "")), name), unreadable if found is None else found
