"""Creates a job with its code, or nothing: an error or Ctrl-C in between leaves no part of it behind."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import yaml

from dtj_client.errors import ClientError, not_yaml
from dtj_client.from_yaml import documents
from dtj_client.kubectl import KIND, Json, Kubectl
from dtj_client.manifest import owned_by


def create(kubectl: Kubectl, job: Json, code: Json | None = None) -> Json:
    """Create the job and its code, and return the stored job.

    The job comes first, so that the code has its owner from the start, and nothing could end this process at
    a moment that leaves code behind which nothing deletes. Raises ClientError, and KeyboardInterrupt after
    Ctrl-C.
    """
    with _interrupt_later() as raise_if_interrupted:
        stored = kubectl.create(job)
        try:
            raise_if_interrupted()
            if code is not None:
                kubectl.create(owned_by(stored, code))
            raise_if_interrupted()
        except BaseException:
            with contextlib.suppress(ClientError):  # the first error is the one to show
                kubectl.delete(KIND, stored["metadata"]["name"])
            raise
    return stored


@contextlib.contextmanager
def temporary(kubectl: Kubectl, job: Json) -> Iterator[str]:
    """Create a job, yield its name, and delete it at the end; Kubernetes does, if this process cannot."""
    job["spec"]["ttlSecondsAfterFinished"] = 0
    name = str(create(kubectl, job)["metadata"]["name"])
    try:
        yield name
    finally:
        kubectl.delete(KIND, name)


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

    if (
        threading.current_thread() is not threading.main_thread()
    ):  # Python delivers signals to the main thread
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
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
        found = documents(text)
    except OSError as error:
        raise ClientError(f"cannot read {name}: {error.strerror}", "name a file with a job") from error
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
    return job, [each for each in found if each is not job]
