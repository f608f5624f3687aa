"""A job's manifest -> what its replicas run on this machine. Pure, but for `load`, which reads the file.

Each field that is not read here has no effect on one machine; `LocalJob.ignored` names all of them.
"""

import json
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtj import contract
from dtj.agent.alone import is_of_job
from dtj.agent.options import LOOPBACK
from dtj.errors import RecipeError, package
from dtj.local.fields import Fields

KIND = "DistributedTrainingJob"
# The operator starts a rank for each of these, too, besides each unit of a resource whose name ends in /gpu.
ACCELERATORS = ("google.com/tpu", "habana.ai/gaudi", "gpu.intel.com/xe", "gpu.intel.com/i915")
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][\w.-]*)\)")


@dataclass(frozen=True, kw_only=True)
class LocalJob:
    """What of a job applies on this machine.

    processes     ranks of each replica
    limits        fewest and most replicas
    deciding      replicas whose success is that of the job; empty: all must succeed
    command       the container's command and arguments, before $(NAME) is replaced
    env           the container's own variables, in their order
    max_restarts  of ranks, and of lost replicas
    window_s      seconds for which a restart of a rank counts
    backoff_s     delay before ranks start again that made no progress
    grace_s       between SIGTERM and SIGKILL in a pod; here only the agents' warnings use it
    hang_s        seconds without a step that count as a hang; None: from the step times
    working_s     the same for a rank that is at work; None: the agents' default
    ignored       paths of the fields that have no effect here
    """

    name: str
    namespace: str
    replicas: int
    processes: int
    limits: tuple[int, int]
    deciding: frozenset[int]
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    max_restarts: int
    window_s: int
    without_progress: int
    backoff_s: int
    grace_s: int
    hang_s: int | None
    working_s: int | None
    hang_action: str
    ignored: tuple[str, ...]

    @property
    def runs_dtj(self) -> bool:
        """Its replicas are agents, which heal failed ranks."""
        return posixpath.basename(self.command[0]) == "dtj"


def load(path: str) -> LocalJob:
    """Read the one job of a YAML file; `-` is standard input.

    RecipeError if there is none, or a field that is needed is wrong.
    """
    yaml = package("yaml", "PyYAML is not installed, which reads manifests", fix="pip install pyyaml")
    name = "standard input" if path == "-" else path
    try:
        found = _objects(_contents(path), yaml)
    except OSError as error:
        raise RecipeError(f"cannot read {name}: {error.strerror}", fix="name a file with a job") from error
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)  # the text quotes lines
        where = "" if place is None else f" in line {place.line + 1}, column {place.column + 1}"
        raise RecipeError(f"{name} is not YAML{where}", fix="correct the file") from error
    jobs = [each for each in found if isinstance(each, Mapping) and each.get("kind") == KIND]
    if len(jobs) != 1:
        kinds = sorted({str(each.get("kind")) if isinstance(each, Mapping) else "text" for each in found})
        raise RecipeError(
            f"{name} has {len(jobs)} objects of kind {KIND} (found: {', '.join(kinds) or 'nothing'})",
            fix="dtj run --local takes a file with one job; kubectl dtj convert makes one of other kinds",
        )
    others = [
        f"{each.get('kind')} {(each.get('metadata') or {}).get('name', '')}".rstrip()
        for each in found
        if each is not jobs[0] and isinstance(each, Mapping)
    ]
    return parse(jobs[0], others=others)


def _contents(path: str) -> bytes:
    if path != "-":
        return Path(path).read_bytes()
    if sys.stdin is None:  # the shell has closed it
        raise RecipeError("standard input is closed", fix="name a file with a job")
    return sys.stdin.buffer.read()


def _objects(data: bytes, yaml: Any) -> list[Any]:
    """The objects of YAML or JSON, in UTF-8 or UTF-16; instead of a List of kubectl, its objects."""
    try:
        documents = [json.loads(data)]  # with tabs and escapes that YAML 1.1 does not have
    except ValueError:
        documents = list(yaml.load_all(data, _loader(yaml)))
    found: list[Any] = []
    for each in documents:
        items = each.get("items") if isinstance(each, Mapping) and each.get("kind") == "List" else None
        found += items if isinstance(items, list) else [] if each is None else [each]
    return found


def _loader(yaml: Any) -> Any:
    """What reads YAML as kubectl does: a date, or a number to base 60 (1:30), is text without quotes, too."""
    tag = "tag:yaml.org,2002:"

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            """The type of a value that has no quotes."""
            found = super().resolve(kind, value, implicit)
            is_sixty = found in (f"{tag}int", f"{tag}float") and ":" in value
            return f"{tag}str" if is_sixty or found == f"{tag}timestamp" else found

    return Loader


def parse(manifest: Mapping[str, Any], *, others: Sequence[str] = ()) -> LocalJob:
    """The job of a manifest; RecipeError with the path of a wrong field.

    others  names of further objects in the file, which are ignored too
    """
    top = Fields("", manifest)
    meta, spec = top.child("metadata"), top.child("spec")
    recovery, hang, elastic = spec.child("recovery"), spec.child("hang"), spec.child("elastic")
    replicas = spec.integer("replicas", 1, least=1)
    limits = (
        elastic.integer("minReplicas", replicas, least=1),
        elastic.integer("maxReplicas", replicas, least=1),
    )
    if not limits[0] <= replicas <= limits[1]:
        raise RecipeError(
            f"spec.replicas is {replicas}, outside of spec.elastic, {limits[0]} to {limits[1]}",
            fix="correct one of them",
        )
    deciding = spec.child("successPolicy").integers("replicas")
    if max(deciding, default=0) >= limits[0]:
        raise RecipeError(
            f"spec.successPolicy.replicas has {max(deciding)}, but the last replica is {limits[0] - 1}",
            fix="replicas count from 0",
        )
    pod = spec.child("template").child("spec")
    container = pod.container()
    job = LocalJob(
        name=meta.text("name", "job"),
        namespace=meta.text("namespace", "default"),
        replicas=replicas,
        processes=_processes(spec, container),
        limits=limits,
        deciding=deciding,
        command=tuple([*container.texts("command")] or ["dtj"]) + tuple(container.texts("args")),
        env=tuple(_variables(container)),
        max_restarts=recovery.integer("maxRestarts", 10),
        window_s=recovery.integer("windowSeconds", 86_400, least=1),
        without_progress=recovery.integer("maxRestartsWithoutProgress", 3),
        backoff_s=recovery.integer("backoffSeconds", 1),
        grace_s=pod.integer("terminationGracePeriodSeconds", 30),
        hang_s=hang.integer("timeoutSeconds", 0) or None,
        working_s=hang.integer("workingSeconds", 0) or None,
        hang_action=hang.text("action", "Restart"),
        ignored=(*top.unread(), *others),
    )
    if job.command == ("dtj",):
        raise RecipeError(
            f"{container.path} has neither command nor args, so only its image knows what to run",
            fix="write args, such as [run, train.py]",
        )
    return job


def environment(
    job: LocalJob, *, index: int, uid: str, port: int, agent_port: int, lost: int = 0
) -> dict[str, str]:
    """The variables of docs/contract.md for replica `index`, then those of the container, as in a pod.

    uid         of the job
    port        of replica 0 for the other replicas
    agent_port  of this replica for /status
    lost        replicas of the job that were replaced so far
    """
    ranks = job.replicas * job.processes
    left = max(0, job.max_restarts - lost)
    values: dict[str, object] = {
        contract.MASTER_ADDR: LOOPBACK,
        contract.MASTER_PORT: port,
        contract.WORLD_SIZE: ranks,
        contract.NODE_RANK: index,
        contract.NNODES: job.replicas,
        contract.NPROC_PER_NODE: job.processes,
        "PET_NPROC_PER_NODE": job.processes,
        "PET_NODE_RANK": index,
        "PET_MASTER_ADDR": LOOPBACK,
        "PET_MASTER_PORT": port,
        "PET_NNODES": job.replicas,
        "PET_MAX_RESTARTS": 0,
        contract.JOB: job.name,
        "DTJ_NAMESPACE": job.namespace,
        contract.JOB_UID: uid,
        contract.ATTEMPT: 0,
        contract.REPLICA_INDEX: index,
        contract.POD: f"{job.name}-{index}",
        "DTJ_REPLICAS": job.replicas,
        contract.MIN_REPLICAS: job.limits[0],
        contract.MAX_REPLICAS: job.limits[1],
        "DTJ_PROCESSES": job.processes,
        contract.AGENT_PORT: agent_port,
        contract.MAX_RESTARTS: left,
        contract.RESTARTS: lost,
        contract.RESTARTS_IN_PLACE: 0,
        contract.RESTART_WINDOW_SECONDS: job.window_s,
        contract.MAX_RESTARTS_WITHOUT_PROGRESS: job.without_progress,
        contract.RESTARTS_WITHOUT_PROGRESS: 0,
        contract.BACKOFF_SECONDS: job.backoff_s,
        contract.GRACE_SECONDS: job.grace_s,
        contract.HANG_ACTION: job.hang_action,
        "PYTHONUNBUFFERED": 1,
    }
    if job.deciding:
        values[contract.SUCCESS_REPLICAS] = ",".join(map(str, sorted(job.deciding)))
    if job.processes == 1:
        values |= {contract.RANK: index, contract.LOCAL_RANK: 0, contract.LOCAL_WORLD_SIZE: 1}
    if job.limits[0] < job.limits[1]:  # elastic
        values |= {
            "PET_NNODES": f"{job.limits[0]}:{job.limits[1]}",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": f"{LOOPBACK}:{port}",
            "PET_RDZV_ID": f"{uid}-0",
            "PET_MAX_RESTARTS": job.max_restarts,
        }
    if job.hang_s is not None:
        values[contract.HANG_SECONDS] = job.hang_s
    if job.working_s is not None:
        values[contract.HANG_WORKING_SECONDS] = job.working_s
    found = {name: str(value) for name, value in values.items()}
    for name, text in job.env:
        found[name] = expand(text, found)
    return found


def shared(job: LocalJob) -> dict[str, str]:
    """The container's own variables, but those that refer to what differs between replicas."""
    found: dict[str, str] = {}
    for name, text in job.env:
        if all(each[1] is None or each[1] in found for each in _REFERENCE.finditer(text)):
            found[name] = expand(text, found)
    return found


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace $(NAME) as Kubernetes does: an unknown name stays as it is, $$ is a dollar sign."""
    return _REFERENCE.sub(lambda m: "$" if m[1] is None else env.get(m[1], m[0]), text)


def _processes(spec: Fields, container: Fields) -> int:
    """Ranks of a replica; auto counts the accelerators that its container would have."""
    if spec.text("processesPerReplica", "auto") != "auto":
        return spec.integer("processesPerReplica", 1, least=1)
    resources = container.peek("resources")
    amounts = dict([*resources.peek("requests").words(), *resources.peek("limits").words()])
    counted = [n for name, n in amounts.items() if name.endswith("/gpu") or name in ACCELERATORS]
    return max(1, sum(int(n) for n in counted if n.isdecimal()))


def _variables(container: Fields) -> Iterator[tuple[str, str]]:
    for variable in container.items("env"):
        name = variable.text("name", "")
        if is_of_job(name):
            raise RecipeError(
                f"{container.path}.env has {name}, which the operator sets", fix="remove it from the job"
            )
        if not variable.has("valueFrom"):
            yield name, variable.text("value", "")
