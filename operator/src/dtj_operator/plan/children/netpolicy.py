"""The NetworkPolicy: a process group trusts every peer that connects, so only the job's own pods may connect.

Ingress: the job's pods on every port (gloo and NCCL choose theirs), the operator's namespace on the agent
port. Egress: unrestricted (DNS, storage, data sets, experiment trackers).
"""

from typing import Any

from dtj_operator import names
from dtj_operator.plan.children.meta import metadata
from dtj_operator.spec import Job

Json = dict[str, Any]


def network_policy(job: Job, operator_namespace: str) -> Json:
    peers = {"podSelector": {"matchLabels": names.child_labels(job.name, job.uid)}}
    operator = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, job.name),
        "spec": {
            "podSelector": {"matchLabels": names.child_labels(job.name, job.uid)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [peers]},
                {"from": [operator], "ports": [{"port": names.AGENT_PORT, "protocol": "TCP"}]},
            ],
        },
    }
