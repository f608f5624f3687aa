"""The objects that `kubectl dtj submit` creates."""

import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dtj_client import amounts
from dtj_client.amounts import GPU, accelerators, counted, is_on_cpus, limits_of
from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Json
from dtj_client.programs import torchrun, wrappers
from dtj_client.programs.launchers import for_pods
from dtj_client.submission.archive import Archive
from dtj_client.submission.requirements import INSTALLER, PATH, Requirements, add_to_path, install
from dtj_client.submission.template import merge

CPU_IMAGE = "ghcr.io/dtj-dev/trainer:0.1.0-cpu"
GPU_IMAGE = "ghcr.io/dtj-dev/trainer:0.1.0"
OF_NVIDIA = "nvidia.com/"  # resources of GPUs and of their parts
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
BY_THE_OPERATOR = re.compile(  # names of variables that it sets; the CRD refuses them
    r"(PET|DTJ)_.*|MASTER_(ADDR|PORT)|(LOCAL_)?(RANK|WORLD_SIZE)|NODE_RANK|NNODES|NPROC_PER_NODE"
)
# Names of variables.
_SECRET = re.compile(r"(.*_)?(TOKEN|SECRET|PASSWORD|API_?KEY|ACCESS_KEY)", re.IGNORECASE)
# Without it Accelerate, and so transformers' Trainer, trains in each rank for itself on CPUs.
FOR_ACCELERATE = {"name": "ACCELERATE_USE_CPU", "value": "true"}
UNPACKER = "code"  # name of the init container
CODE_FOLDER = "/code"  # where the archive is mounted
WORK_FOLDER = "/app"  # where the program runs
ARCHIVE = "code.tar.gz"
_UNPACK = "import tarfile; tarfile.open({!r}).extractall({!r}, filter='data')"
# Each job that mounts the claim may write to it: what one leaves there must not run as the code of another.
_UNPACK_CHECKED = """\
import hashlib, io, pathlib, sys, tarfile
data = pathlib.Path({0!r}).read_bytes()
if not hashlib.sha256(data).hexdigest().startswith({2!r}):
    print('the code in the claim is not what was sent: submit the job again', file=sys.stderr)
    sys.exit(78)
tarfile.open(fileobj=io.BytesIO(data)).extractall({1!r}, filter='data')
"""
_USER = ("runAsUser", "runAsNonRoot")  # fields of a securityContext that `user` decides
HOME = "/tmp"  # as in the trainer image; a user that the image does not know has / as home
_OF_EACH = ("cpu", "memory", "ephemeral-storage")  # resources that init containers get too
LONGEST_HOST = 63  # characters
_GPUS = re.compile(r"(?:(?P<resource>[-.a-z0-9]+/[-._a-zA-Z0-9]+)=)?(?P<count>[0-9]+)")
_KINDS = {"secret": "secret", "configmap": "configMap"}  # beginning of the fields for it
# All keys of an object, or one key as a variable.
_SOURCE = re.compile(
    r"(?:(?P<variable>[^=/]+)=)?(?P<kind>secret|configmap)/(?P<name>[-.a-z0-9]+)(?P<key>/[^/]+)?"
)


@dataclass(frozen=True, kw_only=True)
class InClaim:
    """Where an archive is that is too large for a ConfigMap.

    claim  name of a PersistentVolumeClaim
    path   of the archive within it: the name of the file is the beginning of its SHA-256
    """

    claim: str
    path: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to run.

    command   the program and its arguments; a Python file runs under `dtj run`
    replicas  number of pods; None: as in the template, else 1
    gpus      per pod, of the kind of the template, else of NVIDIA; or such as amd.com/gpu=8; None: as in the
              template, else CPUs only
    image     empty: as in the template, else the trainer image
    cpu, memory  that each pod gets, such as 4 and 16Gi; empty: as in the template
    user      number of the user that runs the program, with /tmp as home; None: as in the template, else the
              image's, which may not be root
    env       variables of the program
    env_from  Secrets and ConfigMaps with more of them: secret/NAME, or VARIABLE=secret/NAME/KEY for one
    claim     name of a PersistentVolumeClaim for checkpoints; empty: none
    queue     name of a Kueue LocalQueue; empty: none
    requirements  packages that an init container installs; they go along with the code
    code_in   where the archive of the code is; None: in the job's ConfigMap
    """

    name: str
    command: Sequence[str]
    replicas: int | None = None
    gpus: int | str | None = None
    image: str = ""
    cpu: str = ""
    memory: str = ""
    user: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    env_from: Sequence[str] = ()
    claim: str = ""
    queue: str = ""
    requirements: Requirements | None = None
    code_in: InClaim | None = None

    def __post_init__(self) -> None:
        """Raise ClientError for what the API server would refuse: a dry run does not ask it."""
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", self.name):
            raise ClientError(
                f"a job cannot have the name {self.name!r}",
                f"use lower case letters, digits and -, such as {new_name(self.name)}",
            )
        if self.gpus is not None and not _GPUS.fullmatch(str(self.gpus)):
            raise ClientError(
                f"gpus: {self.gpus!r} is not a number of GPUs",
                "write a number, or such as amd.com/gpu=8 or gpu.intel.com/xe=4",
            )
        amounts.check(cpu=self.cpu, memory=self.memory)
        for source in self.env_from:
            found = _SOURCE.fullmatch(source)
            if not found or bool(found["variable"]) != bool(found["key"]):
                raise ClientError(
                    f"variables from {source!r}: this names no Secret or ConfigMap",
                    "write secret/NAME or configmap/NAME for all its keys, VARIABLE=secret/NAME/KEY for one",
                )

    @property
    def amounts(self) -> dict[str, str]:
        """What each pod asks for, and may not exceed."""
        return {name: amount for name, amount in (("cpu", self.cpu), ("memory", self.memory)) if amount}


def new_name(program: str) -> str:
    """A name that is free, as far as four random digits can make sure."""
    return f"{as_name(Path(program).stem[:40])}-{secrets.token_hex(2)}"


def as_name(text: str) -> str:
    """A text as a name that a job can have."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return name if name[:1].isalpha() else f"job-{name}".rstrip("-")


def code_name(job: str) -> str:
    """Name of the ConfigMap with the code of a job."""
    return f"{job}-code"


def about_secrets(names: Iterable[str], instead: str) -> str:
    """A sentence about variables whose values look like secrets by their names; empty if there are none."""
    found = ", ".join(filter(_SECRET.fullmatch, names))
    return f"anyone who may read the job can read {found}: {instead}" if found else ""


def config_map(request: Request, archive: Archive) -> Json:
    """The code, as an object that cannot change while the job runs."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": code_name(request.name), "labels": {"dtj.dev/code-of": request.name}},
        "immutable": True,
        "binaryData": {ARCHIVE: archive.base64},
    }


def owned_by(job: Json, manifest: Json) -> Json:
    """The object with the stored job as its owner: Kubernetes deletes both together."""
    owner = {key: job[key] for key in ("apiVersion", "kind")} | {
        key: job["metadata"][key] for key in ("name", "uid")
    }
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}


def job(request: Request, *, with_code: bool, template: Json | None = None) -> Json:
    """The job: what was asked for, above the template, above the defaults.

    with_code   an init container unpacks the ConfigMap into the working directory
    template    a part of a job; see template.py
    """
    made: Json = merge(template or {}, asked(request, with_code=with_code, template=template))
    made["spec"].setdefault("replicas", 1)
    _check_length(request.name, made["spec"])
    trainer = trainer_of(made)
    trainer.pop("args", None)  # of the template: they belong to another command
    if request.user is not None and (own := trainer.get("securityContext")):  # it wins over the pod's
        trainer["securityContext"] = {key: own[key] for key in own if key not in _USER}
    gpus = _gpus(request, template)
    if request.gpus is not None:  # those of the template are others, or requests that the limits replace
        resources = dict(trainer["resources"])
        for kind in resources.keys() & {"limits", "requests"}:
            replaced, given = _kinds(template), resources[kind] or {}
            resources[kind] = {name: given[name] for name in given if name not in replaced}
        resources["limits"] |= gpus
        trainer["resources"] = resources
    on_cpus = is_on_cpus(trainer, gpus)
    if (replicas := int(made["spec"]["replicas"])) > 1:
        trainer["command"] = for_pods(trainer["command"], replicas, on_cpus=on_cpus)
    if "image" not in trainer:
        trainer["image"] = image_for(limits_of(trainer), gpus)
    if on_cpus and torchrun.clean(wrappers.split(trainer["command"])[1]):  # dtj run does it by itself
        given = trainer.get("env") or []
        if not any(each["name"] == FOR_ACCELERATE["name"] for each in given):
            trainer["env"] = [*given, FOR_ACCELERATE]
    if request.user and not any(each["name"] == "HOME" for each in trainer.get("env") or ()):
        trainer["env"] = [*(trainer.get("env") or ()), {"name": "HOME", "value": HOME}]
    if with_code and request.requirements:
        trainer["env"] = add_to_path(trainer.get("env") or ())
    for each in made["spec"]["template"]["spec"].get("initContainers", ()):
        if each["name"] in {UNPACKER, INSTALLER}:
            each.update(_as(trainer))
        if each["name"] == INSTALLER:  # pip's index and proxies are variables of the program, too
            each["env"] = [other for other in trainer["env"] if other["name"] != PATH]
            each.update({"envFrom": trainer["envFrom"]} if trainer.get("envFrom") else {})
    return made


def trainer_of(job: Json) -> Json:
    """The container that runs the program, in a job that this package makes."""
    found: Json = next(c for c in job["spec"]["template"]["spec"]["containers"] if c["name"] == "trainer")
    return found


def _check_length(name: str, spec: Json) -> None:
    """Raise ClientError if the name of the last pod would be too long for a host name."""
    most = int((spec.get("elastic") or {}).get("maxReplicas") or spec["replicas"])
    if (over := len(f"{name}-{most - 1}") - LONGEST_HOST) > 0:
        raise ClientError(
            f"the name {name} is too long by {over}: its last pod would be {name}-{most - 1}",
            f"a host name has at most {LONGEST_HOST} characters: shorten the name",
        )


def _gpus(request: Request, template: Json | None) -> dict[str, int]:
    """The resource that `gpus` means, with its number."""
    found = _GPUS.fullmatch(str(request.gpus))
    if not found:
        return {}
    known = _kinds(template)
    return {found["resource"] or (known.pop() if len(known) == 1 else GPU): int(found["count"])}


def _kinds(template: Json | None) -> set[str]:
    """The resources of the template that `gpus` replaces: whole accelerators, else parts of them (MIG)."""
    containers = ((template or {}).get("spec") or {}).get("template", {}).get("spec", {}).get("containers")
    limits = [limits_of(each) for each in containers or ()]
    return {name for each in limits for name in counted(each) or accelerators(each)}


def image_for(given: Mapping[str, Any], named: Collection[str] = ()) -> str:
    """The trainer image for these accelerators. Raises ClientError if there is none.

    named  as in amounts.py
    """
    used = [name for name, count in accelerators(given, named).items() if str(count) != "0"]
    if others := [name for name in used if not name.startswith(OF_NVIDIA)]:
        raise ClientError(
            f"there is no trainer image for {others[0]}", "name yours with --image: docs/images.md says more"
        )
    return GPU_IMAGE if used else CPU_IMAGE


def _as(trainer: Json) -> Json:
    """What an init container has from the trainer: image, user, and what a quota may demand of each."""
    found: Json = {key: trainer[key] for key in ("image", "securityContext") if key in trainer}
    resources = {
        kind: {name: amount for name, amount in (given or {}).items() if name in _OF_EACH}
        for kind, given in (trainer.get("resources") or {}).items()
        if kind in ("requests", "limits")
    }
    return found | ({"resources": resources} if any(resources.values()) else {})


def literal(text: str) -> str:
    """The text as Kubernetes needs it, which replaces $(NAME) by a variable and $$ by one dollar."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def asked(request: Request, *, with_code: bool, template: Json | None = None) -> Json:
    """What the user's words alone determine; the template decides of which kind GPUs are."""
    trainer: Json = {"name": "trainer", "command": _command(request.command)}
    if request.image:
        trainer["image"] = request.image
    env = {name: literal(value) for name, value in request.env.items()}
    given: dict[str, Json] = {name: {"name": name, "value": value} for name, value in env.items()}
    for each in filter(None, map(_SOURCE.fullmatch, request.env_from)):
        kind, reference = _KINDS[each["kind"]], {"name": each["name"]}
        if variable := each["variable"]:
            source = {f"{kind}KeyRef": reference | {"key": each["key"][1:]}}
            given[variable] = {"name": variable, "valueFrom": source}
        else:
            trainer.setdefault("envFrom", []).append({f"{kind}Ref": reference})
    if given:
        trainer["env"] = list(given.values())
    gpus = _gpus(request, template)
    if gpus or request.amounts:
        trainer["resources"] = {"limits": {**request.amounts, **gpus}}
    if request.amounts:
        trainer["resources"]["requests"] = request.amounts
    pod: Json = {"containers": [trainer]}
    if request.user is not None:
        pod["securityContext"] = {"runAsUser": request.user} | (
            {} if request.user else {"runAsNonRoot": False}
        )
    if with_code:
        _add_code(pod, trainer, request)
        if request.requirements:
            install(pod, trainer, request.requirements, code=WORK_FOLDER)
    spec: Json = {} if request.replicas is None else {"replicas": request.replicas}
    words = wrappers.split(trainer["command"])[1]
    launch = torchrun.of_dtj(words) or torchrun.clean(words)
    if launch and launch.processes not in (None, "auto"):  # the number of ranks is known from the job
        spec["processesPerReplica"] = launch.processes
    spec["template"] = {"spec": pod}
    if request.claim:
        spec["checkpoint"] = {"volume": {"persistentVolumeClaim": {"claimName": request.claim}}}
    labels = {QUEUE_LABEL: request.queue} if request.queue else {}
    return {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": request.name, **({"labels": labels} if labels else {})},
        "spec": spec,
    }


def _add_code(pod: Json, trainer: Json, request: Request) -> None:
    """Add the init container that unpacks the code, and what it needs."""
    trainer |= {"workingDir": WORK_FOLDER, "volumeMounts": [{"name": "app", "mountPath": WORK_FOLDER}]}
    path, source = ARCHIVE, {"configMap": {"name": code_name(request.name)}}
    if place := request.code_in:
        path, source = place.path, {"persistentVolumeClaim": {"claimName": place.claim}}
    pod["volumes"] = [{"name": "code", **source}, {"name": "app", "emptyDir": {}}]
    script = _UNPACK if request.code_in is None else _UNPACK_CHECKED
    digest = Path(path).name.removesuffix(".tar.gz")
    unpack = {
        "name": UNPACKER,
        "command": ["python3", "-c", script.format(f"{CODE_FOLDER}/{path}", WORK_FOLDER, digest)],
        "terminationMessagePolicy": "FallbackToLogsOnError",  # so that the status says why it failed
        "volumeMounts": [
            {"name": "code", "mountPath": CODE_FOLDER, "readOnly": True},
            {"name": "app", "mountPath": WORK_FOLDER},
        ],
    }
    pod["initContainers"] = [unpack]


def _command(words: Sequence[str]) -> list[str]:
    program = [literal(word) for word in words]
    return ["dtj", "run", *program] if words[0].endswith(".py") else program
