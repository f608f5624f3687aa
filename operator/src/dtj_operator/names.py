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
TRAINER_CONTAINER = "trainer"
SHM_VOLUME = "dtj-shm"
CHECKPOINT_VOLUME = "dtj-checkpoints"

NODES_PATH = "/api/v1/nodes"

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
    return f"/apis/{API_VERSION}/namespaces/{key.namespace}/{PLURAL}/{key.name}"


def jobs_path(namespace: str | None) -> str:
    root = f"/apis/{API_VERSION}"
    return f"{root}/namespaces/{namespace}/{PLURAL}" if namespace else f"{root}/{PLURAL}"


def pods_path(namespace: str | None) -> str:
    """All pods of one namespace, or of the whole cluster where it is None."""
    return f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"


def services_path(namespace: str | None) -> str:
    return f"/api/v1/namespaces/{namespace}/services" if namespace else "/api/v1/services"


def policies_path(namespace: str | None) -> str:
    root = "/apis/networking.k8s.io/v1"
    return f"{root}/namespaces/{namespace}/networkpolicies" if namespace else f"{root}/networkpolicies"


def events_path(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"


def leases_path(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
