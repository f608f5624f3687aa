"""Copies the archive of a folder into a claim, when it is too large for a ConfigMap.

A job of one pod mounts the claim, `kubectl exec` writes the archive, and the job is deleted. So the pod has
all that the operator gives to pods, and the user needs no right but those that `stacks` needs.
"""

import hashlib
import time
from collections.abc import Callable

from dtj_client.errors import ClientError
from dtj_client.in_pod import program
from dtj_client.kube.kubectl import Json, Kubectl
from dtj_client.progress import Progress, ignore
from dtj_client.show.report import pod_state
from dtj_client.submission import manifest
from dtj_client.submission.manifest import InClaim
from dtj_client.submission.temporary import Obstacle, place_beside, temporary

POLL_S = 1.0
POLLS = 300  # the pod may have to fetch its image first
_FOLDER = "/claim"  # where the pod mounts it
_FIX = "name a claim that the pods may write to; or build an image with the code: --image and --no-code"
_WAITS = "import time; time.sleep(3600)"  # then the job ends and is deleted, if this process could not do it
_SMALL = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}


def upload(
    kubectl: Kubectl,
    job: Json,
    place: InClaim,
    data: bytes,
    progress: Progress = ignore,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Write the archive to its place. Raises ClientError.

    job   whose pods will read it
    """
    source = program("upload")
    digest = hashlib.sha256(data).hexdigest()
    _check(kubectl, place.claim)
    with temporary(kubectl, _writer(job, place.claim)) as writer:
        pod = _started(kubectl, writer, place.claim, sleep)
        target = f"{_FOLDER}/{place.path}"
        words = ("exec", "-i", pod, "-c", "trainer", "--", "python3", "-c", source, target, digest)
        try:
            kubectl.send(data, *words, progress=progress)
        except ClientError as error:
            said = error.message.partition("\n")[0]
            raise ClientError(
                f"the code was not copied to claim {place.claim}: {said}", error.fix or _FIX
            ) from error


def _check(kubectl: Kubectl, claim: str) -> None:
    """Raise ClientError if there is no such claim: its pod would wait for it until the time is over."""
    try:
        found = kubectl.run("get", "persistentvolumeclaims", claim, "--ignore-not-found", "-o", "name")
    except ClientError:  # no right to read claims
        return
    if not found:
        raise ClientError(f"there is no claim {claim} in this namespace", "kubectl get pvc lists them")


def _writer(job: Json, claim: str) -> Json:
    """A job of one pod that mounts the claim, where a pod of the given job may run."""
    trainer = manifest.trainer_of(job)
    request = manifest.Request(
        name=manifest.new_name("copy-code"),
        command=["python3", "-c", _WAITS],
        replicas=1,
        image=trainer["image"],
        claim=claim,
    )
    writer = manifest.job(request, with_code=False)
    mounted = writer["spec"]["checkpoint"] | {"mountPath": _FOLDER}
    if policy := (job["spec"].get("checkpoint") or {}).get("fsGroupPolicy"):
        mounted["fsGroupPolicy"] = policy
    writer["spec"]["checkpoint"] = mounted
    place_beside(job, writer)
    writer["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    if resources := _small(trainer.get("resources") or {}):
        manifest.trainer_of(writer)["resources"] = resources
    return writer


def _small(resources: Json) -> Json:
    """Little of what the job's pods ask for, but of each kind: a quota may demand it; and no GPU."""
    found = {
        kind: {name: amount for name, amount in amounts.items() if name in (resources.get(kind) or {})}
        for kind, amounts in _SMALL.items()
    }
    return {kind: amounts for kind, amounts in found.items() if amounts}


def _started(kubectl: Kubectl, job: str, claim: str, sleep: Callable[[float], None]) -> str:
    """The name of the pod once it runs."""
    state, obstacle = "no pod was created", Obstacle()
    for _ in range(POLLS):
        for pod in kubectl.pods(job):
            state = pod_state(pod)
            if state == "Running":
                return str(pod["metadata"]["name"])
        status = kubectl.job(job).get("status") or {}
        if obstacle.is_final(status):
            then = "failed" if status.get("phase") == "Failed" else "cannot start"
            raise ClientError(
                f"the pod that copies the code to claim {claim} {then}: {status.get('message', '')}",
                "correct that; or build an image with the code: --image and --no-code",
            )
        sleep(POLL_S)
    message = status.get("message", "")
    raise ClientError(
        f"no pod with claim {claim} started within {POLL_S * POLLS:.0f} s, so the code was not copied "
        f"({state}{f': {message}' if message else ''})",
        f"see kubectl describe pvc {claim}; or build an image with the code: --image and --no-code",
    )
