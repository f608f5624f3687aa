"""The objects that connect the pods of a job, by kind: the Service, and the NetworkPolicy if it wants one."""

from dtj_operator.model.json import Json
from dtj_operator.model.spec import Job
from dtj_operator.plan.children.netpolicy import network_policy
from dtj_operator.plan.children.service import service


def networking(job: Job, operator: Json) -> dict[str, Json]:
    """`operator` is the NetworkPolicyPeer of the operator's pods."""
    bodies = (service(job), network_policy(job, operator)) if job.isolated else (service(job),)
    return {body["kind"]: body for body in bodies}
