"""A job of a few pods that the client needs for some seconds, beside those of the user."""

import contextlib
import sys
from collections.abc import Iterator

from dtj_client.errors import GoneError
from dtj_client.kube.kubectl import KIND, Json, Kubectl
from dtj_client.show.report import condition
from dtj_client.submission.create import create
from dtj_client.submission.manifest import QUEUE_LABEL, trainer_of

KEPT_S = 300  # a temporary job that has failed: long enough to read why
# In so many polls in a row with this reason it is clear that no pod of a temporary job will start. The
# kubelet fetches an image again after ten seconds.
_REFUSED = {"PodRejected": 3, "QuotaExceeded": 10, "NameConflict": 3, "ImagePullFailed": 12}
# Of the job's pods: what may decide where a pod can run, with which user and account, and whether it may.
_KEPT = (
    *("affinity", "imagePullSecrets", "nodeSelector", "priorityClassName", "runtimeClassName"),
    *("schedulerName", "securityContext", "serviceAccountName", "tolerations"),
)


@contextlib.contextmanager
def temporary(kubectl: Kubectl, job: Json) -> Iterator[str]:
    """Create a job, yield its name, and delete it at the end; the operator does, if this process cannot."""
    job["spec"]["ttlSecondsAfterFinished"] = KEPT_S
    name = str(create(kubectl, job)["metadata"]["name"])
    try:
        yield name
    finally:
        with contextlib.suppress(GoneError):
            kubectl.delete(KIND, name)


class Obstacle:
    """For how many polls in a row the operator has named the same obstacle to a temporary job."""

    def __init__(self) -> None:
        self._reason, self._polls = "", 0

    def is_final(self, status: Json) -> bool:
        """Whether its pods will not start by waiting; call it once a poll."""
        reason = condition(status, "PodsReady").get("reason", "")
        self._reason, self._polls = reason, self._polls + 1 if reason == self._reason else 1
        return status.get("phase") == "Failed" or self._polls >= _REFUSED.get(reason, sys.maxsize)


def place_beside(given: Json, job: Json) -> None:
    """Let the pods of a job run where those of a given job may, and be admitted as they are."""
    pod, small = given["spec"]["template"]["spec"], job["spec"]["template"]["spec"]
    small |= {key: pod[key] for key in _KEPT if key in pod}
    if "securityContext" in trainer_of(given):
        trainer_of(job)["securityContext"] = trainer_of(given)["securityContext"]
    job["metadata"] |= _marks(given)
    job["spec"]["template"]["metadata"] = _marks(given["spec"]["template"])


def _marks(given: Json) -> Json:
    """Labels and annotations, which a policy of the cluster may demand; not that of a queue to wait in."""
    found = {kind: (given.get("metadata") or {}).get(kind) or {} for kind in ("labels", "annotations")}
    return {
        kind: {name: value for name, value in marks.items() if name != QUEUE_LABEL}
        for kind, marks in found.items()
    }
