"""Creates a job with its code, or nothing: an error or Ctrl-C in between leaves no part of it behind."""

import contextlib
import json
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from dtj_client.errors import ClientError, ExistsError, GoneError, UnansweredError
from dtj_client.from_yaml import contents, decoded, objects
from dtj_client.kube.kubectl import GROUP, KIND, VERSION, Json, Kubectl
from dtj_client.submission.manifest import owned_by

SUBMISSION = "dtj.dev/submission"  # annotation
POLL_S = 1.0
TRIES = 60  # to create the code while that of a deleted job is there


def create(kubectl: Kubectl, job: Json, code: Json | None = None) -> Json:
    """Create the job and its code, and return the stored job.

    If the cluster gives no answer, but has created the job, it continues as after an answer.
    The job comes first, so that the code has its owner from the start, and nothing could end this process at
    a moment that leaves code behind which nothing deletes. Raises ClientError, and KeyboardInterrupt after
    Ctrl-C.
    """
    marked = _marked(job)
    with _interrupt_later() as raise_if_interrupted:
        try:
            stored = kubectl.create(marked)
        except UnansweredError as error:
            stored = _created(kubectl, marked, error)
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
                    f"kubectl dtj delete {name}{kubectl.chosen}",
                ) from error
            raise
    return stored


def _marked(job: Json) -> Json:
    """The job with a random annotation, by which it is known again."""
    metadata = job["metadata"]
    mark = {SUBMISSION: secrets.token_hex(8)}
    return {**job, "metadata": {**metadata, "annotations": (metadata.get("annotations") or {}) | mark}}


def _created(kubectl: Kubectl, job: Json, unanswered: UnansweredError) -> Json:
    """The job as the cluster has stored it, though it gave no answer. Raises ClientError if it has not."""
    name = job["metadata"].get("name")
    if name is None:  # the cluster gives it one
        raise unanswered
    try:
        found = kubectl.job(name)
    except GoneError:
        raise unanswered from None
    except ClientError as again:
        raise ClientError(
            f"{unanswered.message}; job {name} may be there, without its code: {again.message}",
            f"kubectl dtj delete {name}{kubectl.chosen}",
        ) from unanswered
    if _mark_of(found) != _mark_of(job):
        fix = f"choose another name, or kubectl dtj delete {name}{kubectl.chosen} first"
        raise ClientError(f"{unanswered.message}; there is another job {name}", fix) from unanswered
    return found


def _mark_of(job: Json) -> str | None:
    annotations: dict[str, str] = job["metadata"].get("annotations") or {}
    return annotations.get(SUBMISSION)


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
        f"kubectl delete configmap {name}{kubectl.chosen}",
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
    wrong, fix = f"{name} is not YAML", "correct the file"
    try:
        text = decoded(contents(path))
    except UnicodeDecodeError as error:
        raise ClientError(f"{wrong}: {error}", fix) from error
    found = objects(text, wrong, fix)
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
