"""The PodGroup of an attempt: the scheduler binds none of its pods before enough of them fit at once.

Each attempt has its own. Pods of an earlier attempt that are still terminating count as placed, so in a group
of the whole job the scheduler would bind the new pods one by one as the old ones end.
"""

from dtj_operator.model import names
from dtj_operator.model.json import Json
from dtj_operator.model.spec import Job
from dtj_operator.plan.children.meta import metadata

_V1ALPHA2 = "scheduling.k8s.io/v1alpha2"


def pod_group(job: Job, attempt: int, api_version: str) -> Json:
    """The PodGroup; an elastic job needs `minReplicas` pods to start, any other job all of them.

    A scheduler of Kubernetes 1.37 places no pod whose priority differs from that of its group.

    API servers of 1.36 drop fields whose gate is off: the priority and the disruption mode without
    WorkloadAwarePreemption, the constraints without TopologyAwareWorkloadScheduling. The affinity of the pods
    does then what it can.
    """
    spec: Json = {"schedulingPolicy": {"gang": {"minCount": job.min_replicas}}}
    if priority_class := job.template["spec"].get("priorityClassName"):
        spec["priorityClassName"] = priority_class
    if job.elastic is None:  # without one pod the others would hold their nodes and wait
        spec["disruptionMode"] = "PodGroup" if api_version == _V1ALPHA2 else {"all": {}}
    if job.topology is not None and job.topology.required:
        spec["schedulingConstraints"] = {"topology": [{"key": job.topology.key}]}
    return {
        "apiVersion": api_version,
        "kind": "PodGroup",
        "metadata": metadata(job, names.pod_group_name(job.name, attempt)),
        "spec": spec,
    }
