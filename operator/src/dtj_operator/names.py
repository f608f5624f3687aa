"""The fixed words of the API: group, labels, names of children, REST paths.

Stands at the bottom: everything else may import it, it imports nothing of ours.
"""

from typing import NamedTuple

GROUP = "dtj.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DistributedTrainingJob"
PLURAL = "distributedtrainingjobs"
MANAGER = f"{GROUP}/operator"

JOB_NAME = f"{GROUP}/job-name"
JOB_UID = f"{GROUP}/job-uid"
REPLICA_INDEX = f"{GROUP}/replica-index"
ATTEMPT = f"{GROUP}/attempt"

AGENT_PORT = 29400
DEFAULT_GRACE_S = 30  # of a pod that says nothing about it
TRAINER_CONTAINER = "trainer"
SHM_VOLUME = "dtj-shm"
CHECKPOINT_VOLUME = "dtj-checkpoints"

NODES_PATH = "/api/v1/nodes"
NODE_LEASES = "kube-node-lease"  # the namespace in which kubelets renew theirs

HOST_NAME_LIMIT = 63  # of a DNS label, and so of a pod's hostname


class Key(NamedTuple):
    """What the queue holds: the name of a job, never its contents."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def pod_name(job: str, index: int) -> str:
    """The same name in every attempt: the API server itself refuses a second pod of a rank."""
    return f"{job}-{index}"


def child_labels(job: str, uid: str) -> dict[str, str]:
    """Labels that every child carries, and by which the Service and the NetworkPolicy select pods."""
    return {JOB_NAME: job, JOB_UID: uid}


def job_path(key: Key) -> str:
    return f"{jobs_path(key.namespace)}/{key.name}"


def jobs_path(namespace: str | None) -> str:
    return _collection(f"/apis/{API_VERSION}", PLURAL, namespace)


def pods_path(namespace: str | None) -> str:
    return _collection("/api/v1", "pods", namespace)


def services_path(namespace: str | None) -> str:
    return _collection("/api/v1", "services", namespace)


def policies_path(namespace: str | None) -> str:
    return _collection("/apis/networking.k8s.io/v1", "networkpolicies", namespace)


def events_path(namespace: str) -> str:
    return _collection("/apis/events.k8s.io/v1", "events", namespace)


def leases_path(namespace: str) -> str:
    return _collection("/apis/coordination.k8s.io/v1", "leases", namespace)


def node_lease_path(node: str) -> str:
    return f"{leases_path(NODE_LEASES)}/{node}"


def _collection(root: str, plural: str, namespace: str | None) -> str:
    """All objects of a kind in one namespace, or in the whole cluster where it is None."""
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"
