"""The objects that connect the pods of a job.

Service         headless: a DNS name per replica, even before it is ready: ranks connect while starting
NetworkPolicy   a process group trusts every peer that connects, so only the job's own pods may connect,
                on every port (gloo and NCCL choose theirs); on the agent port also the operator's pods, the
                peers that the installation admits, and those of spec.network.allowFrom. Egress is
                unrestricted (DNS, storage, data sets, experiment trackers)
"""

from collections.abc import Mapping, Sequence

from dtj_operator.model import names
from dtj_operator.model.json import Json
from dtj_operator.model.spec import Job
from dtj_operator.plan.children.meta import metadata

_NAMESPACE = "kubernetes.io/metadata.name"  # label of each namespace


def networking(job: Job, readers: Sequence[Json]) -> dict[str, Json]:
    """The objects by kind; `readers` are the NetworkPolicyPeers that may reach the agents of every job."""
    isolated = job.network.policy == "Isolated"
    bodies = (service(job), network_policy(job, readers)) if isolated else (service(job),)
    return {body["kind"]: body for body in bodies}


def service(job: Job) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, job.name),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.child_labels(job.name, job.uid),
            "ports": [_port("master", job.master_port), _port("agent", names.AGENT_PORT)],
        },
    }


def _port(name: str, number: int) -> Json:
    """With the fields that the API server would fill in, so that the stored port equals it."""
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}


def operator_peer(namespace: str, labels: Mapping[str, str]) -> Json:
    """The operator's pods, as a NetworkPolicyPeer."""
    return {
        "namespaceSelector": {"matchLabels": {_NAMESPACE: namespace}},
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


def writer_of(found: Json, wanted: Json) -> str:
    """Who changed a child: another operator that the NetworkPolicy admits, else the last field manager.

    All operators have the same field manager, but each admits its own pods.
    """
    if others := _operators(found) - _operators(wanted):
        return f"the operator in namespace {min(others)[0]}"
    entries = found["metadata"].get("managedFields") or ()
    of_spec = (each for each in entries if each.get("time") and not each.get("subresource"))
    times = [(each["time"], each.get("manager", "")) for each in of_spec]
    return str(max(times)[1]) if times else ""


def _operators(policy: Json) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Namespace and labels of the operators that a NetworkPolicy admits; a Service admits none."""
    found = set()
    for rule in policy["spec"].get("ingress") or ():
        for peer in rule.get("from") or ():
            namespace, pods = (
                (peer.get(kind) or {}).get("matchLabels") or {}
                for kind in ("namespaceSelector", "podSelector")
            )
            if _NAMESPACE in namespace and pods.get("app.kubernetes.io/name") == "dtj-operator":
                found.add((namespace[_NAMESPACE], tuple(sorted(pods.items()))))
    return found
