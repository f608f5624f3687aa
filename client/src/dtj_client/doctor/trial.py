"""`doctor --try`: a job of two pods, and one pod outside of it, find what only pods can know."""

import contextlib
import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from dtj_client.doctor.checks import Finding, Result
from dtj_client.errors import ForbiddenError
from dtj_client.in_pod import program
from dtj_client.kube.kubectl import Json, Kubectl, phase_of
from dtj_client.show.report import pod_state
from dtj_client.submission import manifest
from dtj_client.submission.temporary import Obstacle, place_beside, temporary

POLL_S = 1.0
POLLS = 300  # pods may have to fetch their image first
POLLS_WITHOUT_POD = 15  # then the operator's message says why there is none, such as a quota
# Asked for only if a quota or a template does; half of the memory is at /dev/shm: it should not look small.
AMOUNTS = {"cpu": "100m", "memory": "2Gi"}
SMALL_SHM = 1 << 30  # bytes; PyTorch's DataLoader workers pass their batches through /dev/shm


def trial(
    kubectl: Kubectl,
    image: str = "",
    template: Json | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Generator[Finding, None, None]:
    """Yield what the pods found; their jobs are deleted at the end. Raises ClientError.

    image     empty: as in the template, else the trainer image
    template  on whose nodes they run, and as whose user, but without its accelerators; see template.py
    """
    request = manifest.Request(name=manifest.new_name("doctor"), command=["python3"], image=image)
    like = manifest.job(request, with_code=False, template=template)
    amounts = _demanded(kubectl, manifest.trainer_of(like))
    with temporary(kubectl, _probe(like, amounts, replicas=2)) as members:
        pods, said = _answers(kubectl, members, 2, sleep)
        if len(said) < 2:
            yield _nothing(kubectl, members, pods)
            return
        yield Finding(Result.GOOD, f"pods: they start, here on {_nodes(pods)}")
        yield shared_memory(said[0])
        yield names(said[1])
        yield connections(said[1])
        if not said[1].get("connected"):  # so a pod that cannot connect either proves nothing
            yield Finding(Result.UNKNOWN, "network policies: unknown until the pods of a job are connected")
            return
        outsider = _probe(like, amounts, str(pods[0]["status"]["podIP"]), replicas=1)
        with temporary(kubectl, outsider) as outside:
            pods, said = _answers(kubectl, outside, 1, sleep)
            yield isolation(said[0]) if said else _nothing(kubectl, outside, pods)


def shared_memory(said: Mapping[str, Any]) -> Finding:
    """What a job without a memory limit of its own gets."""
    shm, memory = said["shm"], said["memory"]
    text = f"shared memory: {_size(shm)} at /dev/shm"
    if memory is not None and memory < shm:
        fix = "set the memory limit of the container (resources.limits.memory); /dev/shm counts towards it"
        return Finding(Result.BAD, f"{text}, but the memory limit of the namespace is {_size(memory)}", fix)
    if shm < SMALL_SHM:
        return Finding(Result.BAD, text, "mount a volume with more memory at /dev/shm in the pod template")
    return Finding(Result.GOOD, text)


def names(said: Mapping[str, Any]) -> Finding:
    """Whether the cluster's DNS knows replica 0."""
    if "unresolved" in said:
        fix = "check the cluster's DNS (kubectl get pods -n kube-system -l k8s-app=kube-dns)"
        return Finding(Result.BAD, f"name resolution: {said['unresolved']}", fix)
    return Finding(Result.GOOD, f"name resolution: replica 1 found replica 0 after {said['resolved_s']} s")


def connections(said: Mapping[str, Any]) -> Finding:
    """Whether the pods of a job reach each other."""
    if said.get("connected"):
        return Finding(Result.GOOD, "network: replica 1 connected to replica 0")
    fix = "a NetworkPolicy of this namespace or the network plugin must admit connections between its pods"
    return Finding(Result.BAD, "network: replica 1 cannot connect to replica 0", fix)


def isolation(said: Mapping[str, Any]) -> Finding:
    """Whether the NetworkPolicy of a job keeps other pods out."""
    if not said["connected"]:
        return Finding(
            Result.GOOD, "network policies: enforced, a pod outside the job could not connect to it"
        )
    fix = "use a network plugin that enforces them, such as Calico or Cilium; any pod can reach your jobs now"
    return Finding(Result.BAD, "network policies: not enforced, a pod outside the job connected to it", fix)


def _demanded(kubectl: Kubectl, trainer: Json) -> dict[str, str]:
    """What each pod must ask for: the template does, or a quota of the namespace counts it."""
    try:
        quotas = kubectl.items("resourcequotas")
    except ForbiddenError:  # a quota that refuses the pods is then found as any other obstacle
        quotas = []
    named = [(each.get("spec") or {}).get("hard") or {} for each in quotas]
    named += [given or {} for given in (trainer.get("resources") or {}).values()]
    counted = {name.removeprefix("requests.").removeprefix("limits.") for names in named for name in names}
    return {name: amount for name, amount in AMOUNTS.items() if name in counted}


def _probe(like: Json, amounts: Mapping[str, str], *arguments: str, replicas: int) -> Json:
    """A job that runs the probe, where the pods of another one may run."""
    source = program("probe")
    command = ["python3", "-c", source, *arguments]
    request = manifest.Request(
        name=manifest.new_name("doctor"),
        command=command,
        replicas=replicas,
        image=manifest.trainer_of(like)["image"],
        cpu=amounts.get("cpu", ""),
        memory=amounts.get("memory", ""),
    )
    probe = manifest.job(request, with_code=False)
    place_beside(like, probe)
    return probe


def _answers(
    kubectl: Kubectl, job: str, count: int, sleep: Callable[[float], None]
) -> tuple[list[Json], list[Json]]:
    """The pods, and what they have said; nothing if not all of them are done in time, or none was created."""
    pods: list[Json] = []
    obstacle = Obstacle()
    for poll in range(POLLS):
        pods = kubectl.pods(job)
        if len(pods) == count and all(phase_of(pod) == "Running" for pod in pods):
            said = [_said(kubectl.run("logs", pod["metadata"]["name"], "-c", "trainer")) for pod in pods]
            if all(each.get("done") for each in said):
                return pods, said
        status = _status(kubectl, job)
        no_pod = not pods and poll >= POLLS_WITHOUT_POD
        if obstacle.is_final(status) or (no_pod and status.get("message")):
            break
        sleep(POLL_S)
    return pods, []


def _said(log: str) -> Json:
    """All that a pod has said; a line that it writes at this moment is left out."""
    found: Json = {}
    for line in log.splitlines():
        with contextlib.suppress(ValueError):
            found |= json.loads(line)
    return found


def _nothing(kubectl: Kubectl, job: str, pods: Sequence[Json]) -> Finding:
    """Why there is no answer."""
    states = ", ".join(sorted({pod_state(pod) for pod in pods})) or "no pod was created"
    message = _status(kubectl, job).get("message")
    said = f"pods: no answer ({states}{f': {message}' if message else ''})"
    fix = "read the events of the namespace (kubectl get events); --image names an image that nodes can fetch"
    return Finding(Result.BAD, said, fix)


def _status(kubectl: Kubectl, job: str) -> Json:
    return kubectl.job(job).get("status") or {}


def _nodes(pods: Sequence[Json]) -> str:
    return " and ".join(sorted({str(pod["spec"].get("nodeName", "?")) for pod in pods}))


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
