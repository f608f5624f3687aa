"""Creates a job with its code, or nothing: an error or Ctrl-C in between leaves no part of it behind."""

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import yaml

from dtj_client.errors import ClientError, ExistsError, GoneError, UnansweredError, not_yaml
from dtj_client.from_yaml import contents, decoded, objects
from dtj_client.kubectl import GROUP, KIND, VERSION, Json, Kubectl
from dtj_client.manifest import owned_by
from dtj_client.report import condition

POLL_S = 1.0
KEPT_S = 300  # a temporary job that has failed: long enough to read why
TRIES = 60  # to create the code while that of a deleted job is there
# In so many polls in a row with this reason it is clear that no pod of a temporary job will start. The
# kubelet fetches an image again after ten seconds.
_REFUSED = {"PodRejected": 3, "QuotaExceeded": 10, "NameConflict": 3, "ImagePullFailed": 12}


def create(kubectl: Kubectl, job: Json, code: Json | None = None) -> Json:
    """Create the job and its code, and return the stored job.

    The job comes first, so that the code has its owner from the start, and nothing could end this process at
    a moment that leaves code behind which nothing deletes. Raises ClientError, and KeyboardInterrupt after
    Ctrl-C.
    """
    with _interrupt_later() as raise_if_interrupted:
        try:
            stored = kubectl.create(job)
        except UnansweredError as error:
            _undo(kubectl, job, code, error)
            raise
        try:
            raise_if_interrupted()
            if code is not None:
                _create_code(kubectl, owned_by(stored, code), raise_if_interrupted)
            raise_if_interrupted()
        except BaseException as error:
            name = stored["metadata"]["name"]
            try:
                kubectl.delete(KIND, name)
            except ClientError as refused:
                why = error.message if isinstance(error, ClientError) else "interrupted"
                raise ClientError(
                    f"{why}; job {name} is there without its code, and was not deleted: {refused.message}",
                    f"kubectl dtj delete {name}",
                ) from error
            raise
    return stored


def _undo(kubectl: Kubectl, job: Json, code: Json | None, unanswered: UnansweredError) -> None:
    """Delete the job if it was created and lacks its code. Raises ClientError if there may be a job now."""
    name = job["metadata"].get("name")
    if name is None:  # the cluster gives it one
        return
    try:
        stored = kubectl.job(name)
        if code is not None and _is_left_behind(kubectl, owned_by(stored, code)):
            kubectl.delete(KIND, name)
            return
    except GoneError:
        return
    except ClientError as again:
        without = "" if code is None else " without its code"
        raise ClientError(
            f"{unanswered.message}; job {name} may be there{without}: {again.message}",
            f"kubectl dtj delete {name}",
        ) from unanswered
    fix = f"kubectl dtj status {name} shows whether it is the one that was submitted"
    raise ClientError(f"{unanswered.message}; there is a job {name}", fix) from unanswered


def _create_code(kubectl: Kubectl, code: Json, between_tries: Callable[[], None]) -> None:
    """Create the code; that of a deleted job of the same name exists until Kubernetes has collected it."""
    for _ in range(TRIES):
        try:
            kubectl.create(code)
        except ExistsError:
            if not _is_left_behind(kubectl, code):
                raise
        else:
            return
        time.sleep(POLL_S)
        between_tries()
    name = code["metadata"]["name"]
    raise ClientError(
        f"the code of a deleted job, ConfigMap {name}, is still there after {POLL_S * TRIES:.0f} s",
        f"kubectl delete configmap {name}",
    )


def _is_left_behind(kubectl: Kubectl, code: Json) -> bool:
    """Whether the object of this name belonged to an earlier job of the same name, or is gone by now."""
    (owner,) = code["metadata"]["ownerReferences"]
    found = kubectl.run("get", "configmaps", code["metadata"]["name"], "--ignore-not-found", "-o", "json")
    owners = json.loads(found)["metadata"].get("ownerReferences") or () if found else ()
    return not found or any(
        each["kind"] == owner["kind"] and each["name"] == owner["name"] and each["uid"] != owner["uid"]
        for each in owners
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


@contextlib.contextmanager
def _interrupt_later() -> Iterator[Callable[[], None]]:
    """Record Ctrl-C and raise it when the function is called; a second Ctrl-C is raised at once."""
    came = False

    def record(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    def raise_if_interrupted() -> None:
        if came:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # Python handles signals only in that one
        yield raise_if_interrupted
        return
    before = signal.signal(signal.SIGINT, record)
    try:
        yield raise_if_interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def read_file(path: str) -> tuple[Json, list[Json]]:
    """Return the one job of a YAML file, and its other objects; `-` is standard input. Raises ClientError."""
    name = "standard input" if path == "-" else path
    try:
        found = objects(decoded(contents(path)))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ClientError(f"{name} is not YAML: {not_yaml(error)}", "correct the file") from error
    if not all(isinstance(each, dict) and each.get("kind") for each in found):
        raise ClientError(f"{name} has a document without a kind", "each document is a Kubernetes object")
    jobs = [each for each in found if each["kind"] == "DistributedTrainingJob"]
    if len(jobs) != 1:
        kinds = ", ".join(sorted({str(each["kind"]) for each in found})) or "nothing"
        raise ClientError(
            f"{name} has {len(jobs)} DistributedTrainingJobs (found: {kinds})",
            "submit takes a file with one; kubectl dtj convert makes one of a PyTorchJob, TrainJob, Job or "
            "sbatch script",
        )
    (job,) = jobs
    if not isinstance(job.get("metadata"), dict):
        raise ClientError(f"the job in {name} has no metadata", "add metadata.name, or pass --name")
    if without := [str(each["kind"]) for each in found if not each.get("apiVersion")]:
        fix = f"that of a job is {GROUP}/{VERSION}"
        raise ClientError(f"{name} has a {without[0]} without apiVersion", fix)
    return job, [each for each in found if each is not job]
