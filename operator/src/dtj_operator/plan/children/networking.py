"""The objects that connect the pods of a job, by kind: the Service, and the NetworkPolicy if it wants one."""

from collections.abc import Sequence

from dtj_operator.model.json import Json
from dtj_operator.model.spec import Job
from dtj_operator.plan.children.netpolicy import network_policy
from dtj_operator.plan.children.service import service


def networking(job: Job, readers: Sequence[Json]) -> dict[str, Json]:
    """`readers` are the NetworkPolicyPeers that may reach the agents of every job."""
    isolated = job.network.policy == "Isolated"
    bodies = (service(job), network_policy(job, readers)) if isolated else (service(job),)
    return {body["kind"]: body for body in bodies}
