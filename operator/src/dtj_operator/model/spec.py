"""The custom resource as a frozen `Job`: parsed once, with defaults; an error names the field and the fix.

The schema and its CEL rules reject almost all invalid objects before they are stored. The checks here are for
objects that an older or newer schema accepted: they end in a condition, never in a crash loop. The defaults
are those of the schema (a test compares them).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dtj_operator.model import names, quantity
from dtj_operator.model.json import Json
from dtj_operator.model.template import wrong_type

MAX_REPLICAS = 10_000  # as in the schema
MOST_PROCESSES = 1024  # in a pod, as in the schema
MOST_RESTARTS = 1000  # recovery.maxRestarts, as in the schema: status.memory has the time of each one
LONGEST_SHOWN = 200  # characters of a wrong value in a message: a status must not become too long
NEVER = "Never"  # instead of a number: off

_WHO_RESTARTS = "the operator, not the kubelet, restarts the ranks"
_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "NNODES", "NPROC_PER_NODE")
RESERVED_ENV = frozenset((*_RENDEZVOUS, "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
RESERVED_ENV_PREFIXES = ("DTJ_", "PET_")
ACCELERATORS = ("google.com/tpu", "habana.ai/gaudi", "gpu.intel.com/xe", "gpu.intel.com/i915")


class SpecError(Exception):
    """An invalid field: its name, its value, and what to write instead."""

    def __init__(self, field: str, value: object, fix: str) -> None:
        shown = repr(value)
        if len(shown) > LONGEST_SHOWN:
            shown = f"{shown[:LONGEST_SHOWN]}..."
        problem = "required value" if value is None else f"invalid value {shown}"
        super().__init__(f"{field}: {problem}: {fix}")
        self.field = field


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One entry of recovery.rules; it matches if each part that is set matches."""

    action: str  # FailJob | Restart | RestartUncounted
    name: str = ""
    exit_codes: frozenset[int] | None = None
    container: str = ""  # whose exit code; empty: of the container to blame
    codes_listed: bool = True  # In; False is NotIn
    conditions: tuple[tuple[str, str], ...] = ()  # (type, status); one match is enough


@dataclass(frozen=True, kw_only=True)
class Recovery:
    scope: str = "Auto"  # | Replica | Job
    max_restarts: int = 10  # within window_s
    window_s: int = 86_400
    max_restarts_without_progress: int = 3
    backoff_s: int = 1
    node_lost_s: int | None = 40  # None: a node never counts as lost
    termination_s: int | None = 300  # beyond its grace period, until a pod is force-deleted; None: never
    avoid_node_after_faults: int | None = 2  # None: nodes are never avoided because of faults
    avoid_node_wait_s: int = 300  # pods may be unschedulable for so long because they avoid nodes
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """The range of replicas that the job may have."""

    min_replicas: int
    max_replicas: int


@dataclass(frozen=True, kw_only=True)
class ResumeFrom:
    """An earlier run on the checkpoint volume; exactly one field is set."""

    job: str | None = None  # in the same namespace
    path: str | None = None  # below the mount


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    mount_path: str
    volume: Json
    sets_group: bool = True  # fsGroupPolicy: pods get an fsGroup, so that they can write to the volume
    resume_from: ResumeFrom | None = None


@dataclass(frozen=True, kw_only=True)
class Hang:
    """When the agents treat the job as hung, and what they do about it.

    timeout_s  seconds without a step; None: derived from the step times
    working_s  seconds without a step of a rank that is at work; None: the agents' default
    """

    timeout_s: int | None = None
    working_s: int | None = None
    action: str = "Restart"  # | Report


@dataclass(frozen=True, kw_only=True)
class Topology:
    """All pods in one domain: on nodes with the same value of the label `key`.

    exclusive  no other job has pods in that domain
    """

    key: str
    required: bool
    exclusive: bool = False


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The queue of Kueue that decides when the job runs, as the labels of the job say."""

    name: str
    priority_class: str = ""  # a WorkloadPriorityClass; empty: the PriorityClass of the template decides
    max_s: int | None = None  # of running time, all rounds together
    workload: str = ""  # name of a Workload that another controller has made for the job


@dataclass(frozen=True, kw_only=True)
class Job:
    """The identity and the spec of one job."""

    namespace: str
    name: str
    uid: str
    generation: int = 1
    deleting: bool = False
    replicas: int = 1
    elastic: Elastic | None = None
    processes: int = 1
    template: Json
    master_port: int = 29500
    suspend: bool = False
    remote: bool = False  # MultiKueue runs a copy of the job in another cluster, here it only waits for it
    deadline_s: int | None = None
    ttl_s: int | None = None
    clean_pods: str = "Running"  # | All | None
    success: frozenset[int] | None = None  # replicas that decide; None: all
    recovery: Recovery = Recovery()
    hang: Hang = Hang()
    checkpoint: Checkpoint | None = None
    isolated: bool = True
    gang: bool = True  # where the cluster can
    topology: Topology | None = None
    queue: Queue | None = None
    asked_replicas: int | None = None  # spec.replicas, if the queue admitted fewer
    allow_from: tuple[Json, ...] = ()  # NetworkPolicyPeers that may also connect to the agents
    error: SpecError | None = None  # if set, all but the identity is a placeholder

    @property
    def min_replicas(self) -> int:
        """The fewest replicas that the job may train with."""
        return self.elastic.min_replicas if self.elastic else self.replicas

    @property
    def max_replicas(self) -> int:
        return self.elastic.max_replicas if self.elastic else self.replicas

    @property
    def grace_s(self) -> int:
        """The pods' termination grace period in seconds."""
        grace_s: int | None = self.template["spec"].get("terminationGracePeriodSeconds")
        return names.DEFAULT_GRACE_S if grace_s is None else grace_s

    @cached_property
    def accelerators(self) -> dict[str, int]:
        """Accelerators of each pod by the name of the resource, such as nvidia.com/gpu."""
        return _accelerators(self.template)

    @cached_property
    def trainer(self) -> str:
        """Name of the container that runs the ranks."""
        return str(_trainer(self.template)["name"])


def managed_by_us(raw: Json) -> bool:
    """Whether spec.managedBy names this operator, or MultiKueue, which needs a Workload for the job."""
    return bool((raw.get("spec") or {}).get("managedBy") in (None, names.MANAGER)) or _remote(raw)


def _remote(raw: Json) -> bool:
    manager = (raw.get("spec") or {}).get("managedBy")
    return bool(manager == names.MULTIKUEUE and (raw["metadata"].get("labels") or {}).get(names.QUEUE_NAME))


def parse(raw: Json) -> Job:
    """Parse the custom resource; an invalid spec becomes `Job.error`, never an exception."""
    meta = raw["metadata"]
    identity: Json = {
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
        "generation": meta.get("generation", 1),
        "deleting": "deletionTimestamp" in meta,
        "remote": _remote(raw),
    }
    try:
        labels = _Fields("metadata.labels", meta.get("labels") or {})
        queue = _queue(labels, _Fields("metadata.annotations", meta.get("annotations") or {}))
        return Job(**identity, queue=queue, **_parse_spec(meta["name"], _Fields("spec", raw.get("spec"))))
    except SpecError as error:
        wrong = error
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a shape without a check of its own
        wrong = SpecError("spec", str(error), "compare the spec with `kubectl explain dtj.spec --recursive`")
    placeholder = {"spec": {"containers": [{"name": names.TRAINER_CONTAINER}]}}
    return Job(**identity, template=placeholder, error=wrong)


class _Fields:
    """A mapping that knows its path, so that every error names the field."""

    def __init__(self, path: str, raw: object) -> None:
        if not isinstance(raw, Mapping):
            raise SpecError(path, raw, "must be an object")
        self.path, self.raw = path, raw

    def child(self, name: str) -> "_Fields | None":
        value = self.raw.get(name)
        return None if value is None else _Fields(f"{self.path}.{name}", value)

    def section(self, name: str) -> "_Fields":
        """The object in this field; without fields if it is absent, so that each has its default."""
        return self.child(name) or _Fields(f"{self.path}.{name}", {})

    def fail(self, name: str, fix: str) -> SpecError:
        return SpecError(f"{self.path}.{name}", self.raw.get(name), fix)

    def integer(
        self, name: str, default: int, minimum: int, maximum: int = 2**31 - 1, or_else: str = ""
    ) -> int:
        value = self.raw.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self.fail(name, f"must be an integer between {minimum} and {maximum}{or_else}")
        return value

    def optional_integer(self, name: str, minimum: int) -> int | None:
        return None if self.raw.get(name) is None else self.integer(name, minimum, minimum)

    def integer_or_never(self, name: str, default: int) -> int | None:
        """A number of at least 1, or None for the word Never."""
        if self.raw.get(name) == NEVER:
            return None
        return self.integer(name, default, 1, or_else=f", or {NEVER}")

    def flag(self, name: str) -> bool:
        value = self.raw.get(name) or False
        if not isinstance(value, bool):
            raise self.fail(name, "must be true or false")
        return value

    def integers(self, name: str) -> frozenset[int]:
        values = self.raw.get(name) or []
        if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
            raise self.fail(name, "must be a list of integers")
        return frozenset(values)

    def choice(self, name: str, *choices: str) -> str:
        value = self.raw.get(name, choices[0])
        if value not in choices:
            raise self.fail(name, f"must be one of {', '.join(choices)}")
        return str(value)

    def items(self, name: str) -> "list[_Fields]":
        value = self.raw.get(name) or []
        if not isinstance(value, list):
            raise self.fail(name, "must be a list")
        return [_Fields(f"{self.path}.{name}[{i}]", item) for i, item in enumerate(value)]


def _parse_spec(name: str, spec: _Fields) -> Json:
    elastic = _elastic(spec.child("elastic"))
    minimum, maximum = (elastic.min_replicas, elastic.max_replicas) if elastic else (1, MAX_REPLICAS)
    replicas = spec.integer("replicas", 1, minimum, maximum)
    most = elastic.max_replicas if elastic else replicas
    if len(names.pod_name(name, most - 1)) > names.HOST_NAME_LIMIT:
        longest = names.HOST_NAME_LIMIT - len(str(most - 1)) - 1
        raise SpecError("metadata.name", name, f"must have at most {longest} characters with {most} replicas")
    port = spec.integer("masterPort", 29500, 1, 65535)
    if port == names.AGENT_PORT:
        raise spec.fail("masterPort", f"{names.AGENT_PORT} is the agent's port; choose another port")
    template = _template(spec)
    network, scheduling = spec.section("network"), spec.section("scheduling")
    checkpoint, success = spec.child("checkpoint"), spec.child("successPolicy")
    topology = scheduling.child("topology")
    return {
        "replicas": replicas,
        "elastic": elastic,
        "processes": _processes(spec, template),
        "template": template,
        "master_port": port,
        "suspend": spec.flag("suspend"),
        "deadline_s": spec.optional_integer("activeDeadlineSeconds", 1),
        "ttl_s": spec.optional_integer("ttlSecondsAfterFinished", 0),
        "clean_pods": spec.choice("cleanPodPolicy", "Running", "All", "None"),
        "success": _success(success, elastic.min_replicas if elastic else replicas) if success else None,
        "recovery": _recovery(spec.section("recovery")),
        "hang": _hang(spec.section("hang")),
        "checkpoint": _checkpoint(checkpoint, template) if checkpoint else None,
        "gang": scheduling.choice("gang", "Auto", "None") == "Auto",
        "topology": _topology(topology) if topology else None,
        "allow_from": tuple(dict(peer.raw) for peer in network.items("allowFrom")),
        "isolated": network.choice("policy", "Isolated", "None") == "Isolated",
    }


def _elastic(fields: _Fields | None) -> Elastic | None:
    if fields is None:
        return None
    minimum = fields.integer("minReplicas", 0, 1, MAX_REPLICAS)
    maximum = fields.integer("maxReplicas", 0, minimum, MAX_REPLICAS)
    return Elastic(min_replicas=minimum, max_replicas=maximum)


def _topology(fields: _Fields) -> Topology:
    key = fields.raw.get("key")
    if not isinstance(key, str) or not key:
        raise fields.fail("key", "must be the name of a node label, such as topology.kubernetes.io/zone")
    required = fields.choice("mode", "Preferred", "Required") == "Required"
    exclusive = fields.flag("exclusive")
    if exclusive and not required:
        raise fields.fail("exclusive", "must be false or absent unless mode is Required")
    return Topology(key=key, required=required, exclusive=exclusive)


def _queue(labels: _Fields, annotations: _Fields) -> Queue | None:
    """Kueue 0.18 and newer names a prebuilt Workload in an annotation, older ones in a label."""
    name = labels.raw.get(names.QUEUE_NAME)
    if not name:
        return None
    seconds = labels.raw.get(names.QUEUE_MAX_SECONDS)
    if seconds is not None and not (str(seconds).isdecimal() and int(seconds) > 0):
        raise labels.fail(names.QUEUE_MAX_SECONDS, "must be a whole number of seconds above 0")
    prebuilt = annotations.raw.get(names.PREBUILT_WORKLOAD) or labels.raw.get(names.PREBUILT_WORKLOAD)
    return Queue(
        name=str(name),
        priority_class=str(labels.raw.get(names.QUEUE_PRIORITY) or ""),
        max_s=None if seconds is None else int(seconds),
        workload=str(prebuilt or ""),
    )


def _success(fields: _Fields, replicas: int) -> frozenset[int]:
    deciding = fields.integers("replicas")
    if not deciding or not all(0 <= index < replicas for index in deciding):
        raise fields.fail("replicas", f"must be a list of indices from 0 to {replicas - 1}")
    return deciding


def _template(spec: _Fields) -> Json:
    template = spec.child("template")
    pod = template.child("spec") if template else None
    if template is None or pod is None or not pod.items("containers"):
        raise SpecError("spec.template.spec.containers", None, "must have at least one container")
    if wrong := wrong_type(dict(template.raw)):
        path, value, expected = wrong
        raise SpecError(f"spec.template{path}", value, f"must be of type {expected}, as in a Pod")
    labels = (template.raw.get("metadata") or {}).get("labels") or {}
    if names.QUEUE_NAME in labels:  # Kueue would queue each pod, and a replaced pod would wait forever
        raise SpecError(
            f"spec.template.metadata.labels[{names.QUEUE_NAME}]",
            labels[names.QUEUE_NAME],
            "must be a label of the job itself: move it to metadata.labels",
        )
    if pod.raw.get("restartPolicy") not in (None, "Never"):
        raise pod.fail("restartPolicy", f"must be Never or absent: {_WHO_RESTARTS}")
    for owned in ("hostname", "subdomain"):
        if pod.raw.get(owned):
            raise pod.fail(owned, "must be absent: the operator sets it, so that the ranks find each other")
    for volume in pod.items("volumes"):
        if volume.raw.get("name") in (names.SHM_VOLUME, names.CHECKPOINT_VOLUME):
            raise volume.fail("name", "the operator adds a volume of this name; choose another name")
    for container in pod.items("containers"):
        if not container.raw.get("name"):
            raise container.fail("name", "every container needs a name")
        for variable in container.items("env"):
            name = str(variable.raw.get("name"))
            if name in RESERVED_ENV or name.startswith(RESERVED_ENV_PREFIXES):
                raise variable.fail("name", "must be absent: the operator sets this variable")
        restarts = container.raw.get("restartPolicy"), container.raw.get("restartPolicyRules") or None
        if restarts not in ((None, None), ("Never", None)) and container.raw is _trainer(template.raw):
            raise container.fail("restartPolicy", f"must be Never, without rules, or absent: {_WHO_RESTARTS}")
    return dict(template.raw)


def _processes(spec: _Fields, template: Json) -> int:
    if spec.raw.get("processesPerReplica", "auto") != "auto":
        return spec.integer("processesPerReplica", 1, 1, MOST_PROCESSES)
    found = sum(_accelerators(template).values())
    if found > MOST_PROCESSES:
        fix = f"auto means {found} here, but {MOST_PROCESSES} is the most; set a number, or request fewer"
        raise SpecError("spec.processesPerReplica", "auto", fix)
    return max(1, found)


def _accelerators(template: Json) -> dict[str, int]:
    resources = _trainer(template).get("resources") or {}
    amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return {
        name: int(quantity.parse(amount) or 0)
        for name, amount in amounts.items()
        if name.endswith("/gpu") or name in ACCELERATORS
    }


def _trainer(template: Mapping[str, Any]) -> Json:
    """The container that runs the ranks."""
    containers: list[Json] = template["spec"]["containers"]
    return next((c for c in containers if c.get("name") == names.TRAINER_CONTAINER), containers[0])


def _recovery(fields: _Fields) -> Recovery:
    return Recovery(
        scope=fields.choice("scope", "Auto", "Replica", "Job"),
        max_restarts=fields.integer("maxRestarts", 10, 0, MOST_RESTARTS),
        window_s=fields.integer("windowSeconds", 86_400, 1),
        max_restarts_without_progress=fields.integer("maxRestartsWithoutProgress", 3, 0),
        backoff_s=fields.integer("backoffSeconds", 1, 0),
        node_lost_s=fields.integer_or_never("nodeLostSeconds", 40),
        termination_s=fields.integer_or_never("terminationSeconds", 300),
        avoid_node_wait_s=fields.integer("avoidNodeWaitSeconds", 300, 0),
        avoid_node_after_faults=fields.integer_or_never("avoidNodeAfterFaults", 2),
        rules=tuple(_rule(rule) for rule in fields.items("rules")),
    )


def _hang(fields: _Fields) -> Hang:
    return Hang(
        timeout_s=fields.optional_integer("timeoutSeconds", 1),
        working_s=fields.optional_integer("workingSeconds", 1),
        action=fields.choice("action", "Restart", "Report"),
    )


def _rule(fields: _Fields) -> Rule:
    codes = fields.child("onExitCodes")
    conditions = fields.items("onPodConditions")
    if "action" not in fields.raw:
        raise fields.fail("action", "must be one of FailJob, Restart, RestartUncounted")
    if codes is None and not conditions:
        raise fields.fail("onExitCodes", "a rule needs onExitCodes or onPodConditions")
    return Rule(
        action=fields.choice("action", "FailJob", "Restart", "RestartUncounted"),
        name=str(fields.raw.get("name") or ""),
        exit_codes=codes.integers("values") if codes else None,
        container=str(codes.raw.get("containerName") or "") if codes else "",
        codes_listed=codes is None or codes.choice("operator", "In", "NotIn") == "In",
        conditions=tuple((str(c.raw.get("type")), str(c.raw.get("status", "True"))) for c in conditions),
    )


def _checkpoint(fields: _Fields, template: Json) -> Checkpoint:
    mount_path = fields.raw.get("mountPath", "/checkpoints")
    if not isinstance(mount_path, str) or not mount_path.startswith("/"):
        raise fields.fail("mountPath", "must be an absolute path, such as /checkpoints")
    # Other containers may mount the same volume there, for example to upload checkpoints.
    trainer = _trainer(template)
    taken = [str(mount.get("mountPath")).rstrip("/") for mount in trainer.get("volumeMounts") or ()]
    if mount_path.rstrip("/") in taken:
        raise fields.fail(
            "mountPath", f"container {trainer['name']} already mounts a volume there; choose another path"
        )
    volume = fields.child("volume")
    if volume is None or not volume.raw:
        raise fields.fail(
            "volume", "must be a volume source, such as persistentVolumeClaim: {claimName: runs}"
        )
    resume = fields.child("resumeFrom")
    return Checkpoint(
        mount_path=mount_path,
        volume={k: v for k, v in volume.raw.items() if k != "name"},
        sets_group=fields.choice("fsGroupPolicy", "Trainer", "None") == "Trainer",
        resume_from=_resume_from(resume) if resume else None,
    )


def _resume_from(fields: _Fields) -> ResumeFrom:
    job, path = fields.raw.get("job"), fields.raw.get("path")
    if (job is None) == (path is None):
        raise fields.fail("job", "exactly one of job and path must be set")
    if job is not None and (not isinstance(job, str) or not job or "/" in job):
        raise fields.fail("job", "must be the name of an earlier job in this namespace")
    if path is not None and (
        not isinstance(path, str) or not path or path[0] == "/" or ".." in path.split("/")
    ):
        raise fields.fail("path", "must be a path relative to mountPath, without '..'")
    return ResumeFrom(job=job, path=path)
