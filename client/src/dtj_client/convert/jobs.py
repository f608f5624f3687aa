"""Turns jobs of other systems into DistributedTrainingJobs, and lists what could not be carried over.

Each conversion removes from a copy of the old object what it understands; what is left is what it did not.
"""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dtj_client import amounts
from dtj_client.as_yaml import as_yaml
from dtj_client.convert import slurm
from dtj_client.errors import ClientError
from dtj_client.from_yaml import objects
from dtj_client.kube.kubectl import Json
from dtj_client.programs import accelerate, launchers, torchrun, wrappers
from dtj_client.submission import manifest
from dtj_client.submission.manifest import BY_THE_OPERATOR, QUEUE_LABEL
from dtj_client.submission.template import fields, merge

# With an owner or a finalizer of the old job the new one would be deleted with it, or never.
_OF_THE_OLD = (
    *("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName"),
    *("generation", "managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid"),
)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
_OF_THE_POD = frozenset(accelerate.PLACE.values())  # variables that Kubernetes replaces
_TRAINING = "node"  # of a runtime's jobs and containers, the ones that train


@dataclass
class Converted:
    """A job, and sentences about what is different from the old one."""

    job: Json
    notes: list[str] = field(default_factory=list)


def convert(text: str) -> list[Converted]:
    """Convert the PyTorchJobs, TrainJobs and Jobs of a file, or an sbatch script. Raises ClientError."""
    if re.search(r"^#SBATCH\s", text, re.MULTILINE):
        script = slurm.parse(text.replace("\r\n", "\n"))
        return [_with_values_to_write(_finished(script.name, script.spec, script.notes, {}))]
    every = objects(text, "this is neither YAML nor an sbatch script", _FIX)
    found: list[Json] = [_without_null(each) for each in every if isinstance(each, dict) and each.get("kind")]
    kinds = set(map(_kind, found))
    if kinds == {"DistributedTrainingJob"}:
        raise ClientError("this is a DistributedTrainingJob already", "kubectl dtj submit -f submits it")
    if not kinds & set(_KINDS):
        said = f"there is no job to convert (found: {', '.join(sorted(kinds)) or 'nothing'})"
        raise ClientError(said, _BY_HAND if kinds else _FIX)
    runtimes = {_name(each): each for each in found if _kind(each) in _RUNTIMES}
    converted = [_object(each, runtimes) for each in found if _kind(each) in _KINDS]
    others = sorted(kinds - set(_KINDS) - set(_RUNTIMES))
    if others:
        converted[0].notes.append(f"not converted, apply them as they are: {', '.join(others)}")
    return converted


_NOT_ROOT = (
    "no user was named: pods do not run as root here, so for an image whose user is root write "
    "securityContext.runAsUser, such as 1000, into spec.template.spec, and the variable "
    f"HOME={manifest.HOME} into env of its container: a user that the image does not know has / as home"
)
_FIX = "give a file with a PyTorchJob, TrainJob or Job, or an sbatch script"
_BY_HAND = (
    f"{_FIX}; for another kind write the job: kubectl dtj submit --dry-run -- train.py prints one, in which "
    "torchrun or dtj run takes the place of mpirun or Ray"
)


def _without_null(value: Any) -> Any:
    """The value without fields that are null, which Kubernetes treats as not there."""
    if isinstance(value, list):
        return [_without_null(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_null(each) for key, each in value.items() if each is not None}


def _name(each: Json) -> str:
    metadata = each.get("metadata")
    return str((isinstance(metadata, dict) and metadata.get("name")) or "converted")


def _kind(each: Json) -> str:
    """The kind of an object; a Job of another group, such as Volcano's, is another kind."""
    group, slash, _ = str(each.get("apiVersion", "")).partition("/")
    other = each.get("kind") == "Job" and slash and group != "batch"
    return f"Job of {group}" if other else str(each.get("kind"))


def _with_values_to_write(converted: Converted) -> Converted:
    """Name the variables of the shell that are left in the command: no shell runs in the pod."""
    (trainer,) = converted.job["spec"]["template"]["spec"]["containers"]
    words = [word for word in trainer.get("command") or () if word.partition("=")[2] not in _OF_THE_POD]
    left = dict.fromkeys(re.findall(r"\$[{(]?\w+", " ".join(words)))
    if left:
        names = ", ".join(_named(re.sub("[{(]", "", each)) for each in left)
        converted.notes.append(f"the command has variables of the shell: write their values: {names}")
    return converted


def _named(variable: str) -> str:
    """The variable, and what a rank reads instead of it."""
    instead = slurm.OF_RANKS.get(variable[1:])
    return f"{variable} (in the program read {instead})" if instead else variable


def _object(old: Json, runtimes: Json) -> Converted:
    try:
        return _converted(old, runtimes)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ClientError(
            f"{old['kind']} {_name(old)} has a field that is missing or of a wrong type: {error}",
            "kubectl create --dry-run=server -f FILE names it",
        ) from error


def _converted(old: Json, runtimes: Json) -> Converted:
    rest = copy.deepcopy(old)
    for key in ("apiVersion", "status"):
        rest.pop(key, None)
    kind, metadata = rest.pop("kind"), rest.pop("metadata", {})
    for key in _OF_THE_OLD:
        metadata.pop(key, None)
    (metadata.get("annotations") or {}).pop(_LAST_APPLIED, None)
    spec: Json = {}
    notes: list[str] = []
    runtime = ((rest.get("spec") or {}).get("runtimeRef") or {}).get("name")
    _KINDS[kind](rest.get("spec") or {}, spec, notes)
    if runtime in runtimes:
        _add_runtime(runtimes[runtime], spec, notes)
    elif runtime:
        notes.append(
            f"runtime {runtime} is not in the file: convert both together "
            f"(kubectl get clustertrainingruntime {runtime} -o yaml prints it), or copy what it adds to pods"
        )
    if QUEUE_LABEL in (metadata.get("labels") or {}) and spec.pop("suspend", None):
        notes.append("left out: suspend: true: Kueue keeps the job waiting until it admits it")
    metadata.pop("name", None)
    new = _finished(_name(old), spec, notes, metadata, of_pods=kind == "PyTorchJob")
    new.notes += [f"not carried over: {each}" for each in _left(rest, old)]
    return new


def _left(rest: Json, old: Json) -> Iterator[str]:
    """Yield what is left of the old object; an empty object counts if it was one, such as `volcano: {}`."""
    empty = {path for path, value in fields(old) if value == {}}
    for path, value in fields(rest):
        if value not in ({}, [], None) or path in empty:
            yield f"{path}: {value}"


def _finished(name: str, spec: Json, notes: list[str], metadata: Json, *, of_pods: bool = False) -> Converted:
    """The job; its container is named trainer, and torchrun has only what the operator does not set."""
    pod = spec.setdefault("template", {}).setdefault("spec", {})
    for key in ("restartPolicy", "hostname", "subdomain"):
        if (value := pod.pop(key, None)) and key != "restartPolicy":
            notes.append(f"left out: {key}: {value}: the operator sets it")
    containers = pod["containers"] = pod.get("containers") or [{}]
    trainer = _trainer(containers)
    trainer["name"] = "trainer"
    if trainer.get("image"):
        security = {**(pod.get("securityContext") or {}), **(trainer.get("securityContext") or {})}
        if "runAsUser" not in security and security.get("runAsNonRoot") is not False:
            notes.append(_NOT_ROOT)
    else:
        try:
            image = manifest.image_for(amounts.limits_of(trainer))
        except ClientError as error:
            notes.append(f"no image was named, and {error.message}: write the image")
        else:
            trainer["image"] = image
            notes.append(
                f"no image was named: {image} may lack packages of the program, and lacks its code: "
                "name an image that has both, or send the code with kubectl dtj submit -- PROGRAM"
            )
    _remove_rendezvous(trainer, notes)
    wrapper, words = wrappers.split([*(trainer.get("command") or ()), *(trainer.get("args") or ())])
    on_cpus = amounts.is_on_cpus(trainer)
    accelerated = partial(accelerate.clean, on_cpus=on_cpus)
    of_torchrun = torchrun.clean(words) or torchrun.in_a_shell(words)
    if launched := of_torchrun or accelerated(words) or torchrun.in_a_shell(words, accelerated):
        trainer["command"] = [*wrapper, *launched.words]
        trainer.pop("args", None)
        notes += [*launched.notes, *([accelerate.ON_CPUS] if on_cpus and not of_torchrun else [])]
        if not of_torchrun:
            spec.pop("processesPerReplica", None)  # the number of launchers: ranks are as many as GPUs
        if launched.processes:  # more than the tasks of Slurm, each of which would start these
            spec["processesPerReplica"] = launched.processes
    elif words and str(words[0]).rpartition("/")[2] == "deepspeed":
        notes.append(f"{launchers.DEEPSPEED}: {launchers.DEEPSPEED_FIX}")
    elif any(re.search(r"torchrun|torch\.distributed|accelerate launch", str(word)) for word in words):
        notes.append("check the shell text: the operator sets what --nnodes, --node-rank and --rdzv-* say")
    notes += filter(None, [launchers.count_processes(spec, of_pods=of_pods)])
    if (found := manifest.as_name(name)) != name:
        notes.append(f"a job cannot have the name {name}: it is {found} here")
        name = found
    job = {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }
    return Converted(job, notes)


def _trainer(containers: Sequence[Json]) -> Json:
    """The container that trains."""
    return next((c for c in containers if c.get("name") in ("trainer", "pytorch", "node")), containers[0])


def _remove_rendezvous(trainer: Json, notes: list[str]) -> None:
    """Take out what the operator decides."""
    for key, name in (("env", BY_THE_OPERATOR), ("ports", re.compile("pytorchjob-port"))):
        for each in [e for e in trainer.get(key) or () if name.fullmatch(e.get("name") or "")]:
            trainer[key].remove(each)
            notes.append(f"left out: {key}[{each['name']}]: the operator sets it")
        if trainer.get(key) == []:
            del trainer[key]


def _move(old: Json, new: Json, **names: str) -> None:
    """Move fields; `names` gives the new name of each."""
    for before, after in names.items():
        if before in old:
            new[after] = old.pop(before)


def _pytorchjob(old: Json, spec: Json, notes: list[str]) -> None:
    replicas = old.get("pytorchReplicaSpecs") or {}
    given = [kind for kind in ("Master", "Worker") if kind in replicas]
    counts = {kind: int(replicas[kind].pop("replicas", 1)) for kind in given}
    if not counts:
        raise ClientError("the PyTorchJob has neither a Master nor a Worker", _FIX)
    spec["replicas"] = sum(counts.values())
    main = given[-1] if counts[given[-1]] else given[0]  # most replicas are workers
    spec["template"] = replicas[main].pop("template", {})
    for kind in given:  # another template stays, and so is listed
        if replicas[kind].get("template") == spec["template"]:
            del replicas[kind]["template"]
    if "Master" in counts:
        notes.append("the job succeeds when all ranks do, not when the master does: see spec.successPolicy")
    _restart_policy(replicas, spec, notes)
    _processes(old, "nprocPerNode", spec)
    run = old.get("runPolicy") or {}
    _move(run, spec, activeDeadlineSeconds="activeDeadlineSeconds", suspend="suspend")
    _move(run, spec, ttlSecondsAfterFinished="ttlSecondsAfterFinished", cleanPodPolicy="cleanPodPolicy")
    elastic = old.get("elasticPolicy") or {}
    _processes(elastic, "nProcPerNode", spec)
    for limits, name in ((elastic, "maxRestarts"), (run, "backoffLimit")):  # a second limit is listed
        if "maxRestarts" not in spec.setdefault("recovery", {}):
            _move(limits, spec["recovery"], **{name: "maxRestarts"})
    if {"minReplicas", "maxReplicas"} <= set(elastic):
        spec["elastic"] = {
            key: elastic.pop(key) + counts.get("Master", 0) for key in ("minReplicas", "maxReplicas")
        }
    if not spec["recovery"]:
        del spec["recovery"]


def _restart_policy(replicas: Json, spec: Json, notes: list[str]) -> None:
    policies = {each.pop("restartPolicy", "OnFailure") for each in replicas.values()}
    if policies == {"Never"}:
        spec["recovery"] = {"maxRestarts": 0}
    elif policies - {"OnFailure", "Always"}:
        notes.append(f"restartPolicy {', '.join(sorted(policies))}: write recovery.rules with onExitCodes")


def _processes(old: Json, name: str, spec: Json) -> None:
    """Processes of a replica: a number or auto; anything else stays, and so is listed."""
    value = str(old.get(name, ""))
    if value.isdigit():
        spec["processesPerReplica"] = int(value)
    elif value in ("auto", "gpu"):
        spec["processesPerReplica"] = "auto"
    else:
        return
    del old[name]


def _trainjob(old: Json, spec: Json, notes: list[str]) -> None:
    trainer = old.get("trainer") or {}
    if "numNodes" in trainer:
        spec["replicas"] = int(trainer.pop("numNodes"))
    _processes(trainer, "numProcPerNode", spec)
    container: Json = {"name": "trainer"}
    _move(
        trainer,
        container,
        image="image",
        command="command",
        args="args",
        env="env",
        resourcesPerNode="resources",
    )
    spec["template"] = merge(_patched(old), {"spec": {"containers": [container]}})
    pods = {key: old.pop(key) for key in ("labels", "annotations") if key in old}
    if pods:
        spec["template"] = merge(spec["template"], {"metadata": pods})
    _move(old, spec, suspend="suspend")
    old.pop("runtimeRef", None)


def _patched(old: Json) -> Json:
    """Take what a TrainJob changes in the pods of its runtime in which it trains."""
    found: Json = {}
    patches = {each.pop("manager", str(n)): each for n, each in enumerate(old.pop("runtimePatches", ()))}
    for patch in patches.values():
        found = merge(found, _training_pods((patch.get("trainingRuntimeSpec") or {}).get("template")))
    if patches:
        old["runtimePatches"] = patches  # what is left of them
    return found


def _training_pods(job_set: Json | None) -> Json:
    """Take the pod template of the job that trains out of the template of a runtime."""
    found: Json = {}
    for job in ((job_set or {}).get("spec") or {}).get("replicatedJobs") or ():
        if job.get("name") == _TRAINING:
            found = ((job.get("template") or {}).get("spec") or {}).pop("template", {})
            for container in (found.get("spec") or {}).get("containers") or ():
                if container.get("name") == _TRAINING:
                    container["name"] = "trainer"
    return found


def _add_runtime(runtime: Json, spec: Json, notes: list[str]) -> None:
    """Fill in what the job leaves to its runtime: sizes, and the pods in which it trains."""
    rest = copy.deepcopy(runtime.get("spec", {}))
    policy = rest.get("mlPolicy") or {}
    if "numNodes" in policy:
        spec.setdefault("replicas", int(policy.pop("numNodes")))
    torch = policy.get("torch") or {}
    if "processesPerReplica" in spec:
        torch.pop("numProcPerNode", None)
    _processes(torch, "numProcPerNode", spec)
    if not torch:  # says only that the program is one of torch
        policy.pop("torch", None)
    spec["template"] = merge(_training_pods(rest.get("template")), spec["template"])
    notes += [f"not carried over from the runtime: {each}" for each in _left(rest, runtime.get("spec", {}))]


def _batch_job(old: Json, spec: Json, notes: list[str]) -> None:
    sizes = {int(old.pop(key)) for key in ("completions", "parallelism") if key in old}
    spec["replicas"] = max(sizes, default=1)
    if len(sizes) == 2:
        notes.append("completions and parallelism differ: all replicas run at the same time")
    spec["template"] = old.pop("template", {})
    if old.get("completionMode") == "Indexed":
        del old["completionMode"]
        if containers := (spec["template"].get("spec") or {}).get("containers"):
            trainer = _trainer(containers)
            trainer["env"] = _with_index(trainer.get("env") or ())
    _move(old, spec, activeDeadlineSeconds="activeDeadlineSeconds", suspend="suspend")
    _move(old, spec, ttlSecondsAfterFinished="ttlSecondsAfterFinished")
    if "backoffLimit" in old:
        spec["recovery"] = {"maxRestarts": old.pop("backoffLimit")}


def _with_index(env: Sequence[Json]) -> list[Json]:
    """The variables, with the index that Kubernetes gives pods of an indexed Job: that of the replica."""
    found = {each["name"]: each for each in env}
    by_annotation = [name for name, each in found.items() if "job-completion-index" in str(each)]
    for name in (*by_annotation, "JOB_COMPLETION_INDEX"):
        found[name] = {"name": name, "value": "$(NODE_RANK)"}
    return list(found.values())


_KINDS: dict[str, Callable[[Json, Json, list[str]], None]] = {
    "PyTorchJob": _pytorchjob,
    "TrainJob": _trainjob,
    "Job": _batch_job,
}


def text_of(converted: list[Converted]) -> Iterator[str]:
    """Yield the jobs, each below comments with its notes."""
    for each in converted:
        yield "---"
        yield from (f"# {line}" for note in each.notes for line in note.splitlines())
        yield as_yaml(each.job)
