"""The Events about a job: what the operator did or found; and what kubelets say about its pods."""

from collections.abc import Sequence
from dataclasses import dataclass

from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Json, Kubectl
from dtj_client.show.report import condition


@dataclass(frozen=True, order=True)
class Event:
    """One Event.

    at     when it last happened, in RFC 3339
    type   Normal or Warning
    count  how often it happened
    """

    at: str
    type: str
    reason: str
    message: str
    count: int

    def __str__(self) -> str:
        again = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.at} {self.type} {self.reason}: {self.message}{again}"


def of_api(found: Json) -> Event:
    """An Event as the API has it, of either of its two kinds."""
    series, meta = found.get("series") or {}, found["metadata"]
    times = (series.get("lastObservedTime"), found.get("lastTimestamp"), found.get("eventTime"))
    return Event(
        at=next((each for each in times if each), meta.get("creationTimestamp") or ""),
        type=found.get("type") or "Normal",
        reason=found.get("reason") or "",
        message=found.get("message") or "",
        count=series.get("count") or found.get("count") or 1,
    )


def of_kubelet(kubectl: Kubectl, pods: Sequence[Json]) -> str:
    """What the kubelet says about the first pod that waits for its volumes or network; empty if nothing.

    Only Events have it, such as: MountVolume.SetUp failed for volume "a" : secret "b" not found.
    """
    for pod in filter(_waits, pods):
        about = f"--field-selector=involvedObject.uid={pod['metadata']['uid']},type=Warning"
        try:
            found = sorted(map(of_api, kubectl.items("events", about)))
        except ClientError:  # no right to read them
            return ""
        return f"pod {pod['metadata']['name']}: {found[-1].reason}: {found[-1].message}" if found else ""
    return ""


def _waits(pod: Json) -> bool:
    status = pod.get("status") or {}
    if status.get("phase") != "Pending" or pod["metadata"].get("deletionTimestamp"):
        return False
    prepared = condition(status, "PodReadyToStartContainers").get("status")
    return prepared == "False" and "nodeName" in pod["spec"]
