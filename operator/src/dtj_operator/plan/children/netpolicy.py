"""The NetworkPolicy: a process group trusts every peer that connects, so only the job's own pods may connect.

Ingress: the job's pods on every port (gloo and NCCL choose theirs); on the agent port also the operator's
pods, the peers that the installation admits, and those of spec.network.allowFrom. Egress: unrestricted (DNS,
storage, data sets, experiment trackers).
"""

from collections.abc import Mapping, Sequence

from dtj_operator.model import names
from dtj_operator.model.json import Json
from dtj_operator.model.spec import Job
from dtj_operator.plan.children.meta import metadata


def operator_peer(namespace: str, labels: Mapping[str, str]) -> Json:
    """The operator's pods, as a NetworkPolicyPeer."""
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": dict(labels)},
    }


def network_policy(job: Job, readers: Sequence[Json]) -> Json:
    """The policy; `readers` are the NetworkPolicyPeers that may reach the agents of every job."""
    peers = {"podSelector": {"matchLabels": names.child_labels(job.name, job.uid)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, job.name),
        "spec": {
            "podSelector": {"matchLabels": names.child_labels(job.name, job.uid)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [peers]},
                {
                    "from": [*readers, *job.network.allow_from],
                    "ports": [{"port": names.AGENT_PORT, "protocol": "TCP"}],
                },
            ],
        },
    }
