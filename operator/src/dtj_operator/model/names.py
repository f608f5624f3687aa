"""Constants of the API: group, labels, names of children.

The lowest layer: every other module may import it, and it imports none of them.
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
AVOIDS_NODES = f"{GROUP}/avoids-nodes"  # "true": the operator added a required node affinity

AGENT_PORT = 29400
DEFAULT_GRACE_S = 30  # Kubernetes' default terminationGracePeriodSeconds
TRAINER_CONTAINER = "trainer"
SHM_VOLUME = "dtj-shm"
CHECKPOINT_VOLUME = "dtj-checkpoints"

# Versions of the API of PodGroups that the operator can use, the newest first.
POD_GROUP_VERSIONS = ("scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha2")
POD_GROUPS = "podgroups"
DEFAULT_SCHEDULER = "default-scheduler"

# Kueue's API. The labels are those that users know from other kinds of jobs.
KUEUE = "kueue.x-k8s.io"
KUEUE_API = f"{KUEUE}/v1beta2"
MULTIKUEUE = f"{KUEUE}/multikueue"  # as spec.managedBy: Kueue runs a copy of the job in another cluster
WORKLOADS = "workloads"
QUEUE_NAME = f"{KUEUE}/queue-name"
QUEUE_PRIORITY = f"{KUEUE}/priority-class"
QUEUE_MAX_SECONDS = f"{KUEUE}/max-exec-time-seconds"
PREBUILT_WORKLOAD = f"{KUEUE}/prebuilt-workload-name"
QUEUE_JOB_UID = f"{KUEUE}/job-uid"
# Of pods, as Kueue documents them; topology: Kueue lifts the gate when it has chosen the node.
POD_SET, POD_WORKLOAD = f"{KUEUE}/podset", f"{KUEUE}/workload"
LOCAL_QUEUE, CLUSTER_QUEUE = f"{KUEUE}/local-queue-name", f"{KUEUE}/cluster-queue-name"
TOPOLOGY_GATE = f"{KUEUE}/topology"
# Annotations of the template: all pods in one domain of a level, must or should; or anywhere.
REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY = (
    f"{KUEUE}/podset-required-topology",
    f"{KUEUE}/podset-preferred-topology",
)
ANY_TOPOLOGY = f"{KUEUE}/podset-unconstrained-topology"
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"  # of which kubectl shows the log


class Key(NamedTuple):
    """Namespace and name of a job: what the queue holds, never the job itself."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def pod_name(job: str, index: int) -> str:
    """The same name in every attempt, so that the API server rejects a second pod of a replica."""
    return f"{job}-{index}"


def child_labels(job: str, uid: str) -> dict[str, str]:
    """Labels of every child; the Service and the NetworkPolicy select pods by them."""
    return {JOB_NAME: job, JOB_UID: uid}


def pod_group_name(job: str, attempt: int) -> str:
    return f"{job}-{attempt}"
