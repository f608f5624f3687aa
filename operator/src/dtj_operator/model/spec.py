"""The custom resource as a frozen `Job`: parsed once, with defaults; an error names the field and the fix.

The schema and its CEL rules reject almost all invalid objects before they are stored. Checked here are types,
because the schema may be an older or newer one, and what it cannot express: such objects end in a condition,
never in a crash loop. The defaults are those of the schema (a test compares them).
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dtj_operator.model import names, quantity
from dtj_operator.model.json import Json
from dtj_operator.model.template import Template
from dtj_operator.model.typed import SpecError, one_of, read

MAX_REPLICAS = 10_000  # as in the schema
MOST_PROCESSES = 1024  # in a pod, as in the schema
MOST_RESTARTS = 1000  # recovery.maxRestarts, as in the schema: status.memory has the time of each one
NEVER = "Never"  # instead of a number: off

_WHO_RESTARTS = "the operator, not the kubelet, restarts the ranks"
ACCELERATORS = ("google.com/tpu", "habana.ai/gaudi", "gpu.intel.com/xe", "gpu.intel.com/i915")

_LARGEST = 2**31 - 1
_Count = Annotated[int, Meta(ge=0, le=_LARGEST)]
_Positive = Annotated[int, Meta(ge=1, le=_LARGEST)]
_Replicas = Annotated[int, Meta(ge=1, le=MAX_REPLICAS)]
_OR_NEVER = ("nodeLostSeconds", "terminationSeconds", "avoidNodeAfterFaults")  # of recovery


def _in_json(name: str) -> str:
    """`max_restarts` is maxRestarts, `window_s` is windowSeconds."""
    first, *others = (f"{name}econds" if name.endswith("_s") else name).split("_")
    return first + "".join(map(str.capitalize, others))


class _Part(msgspec.Struct, frozen=True, rename=_in_json):
    """A part of the spec. Fields that it does not have are ignored."""


class ExitCodes(_Part, frozen=True, kw_only=True):
    container_name: str = ""  # whose exit code; empty: of the container to blame
    operator: Annotated[str, one_of("In", "NotIn")] = "In"
    values: frozenset[int] = frozenset()


class PodCondition(_Part, frozen=True, kw_only=True):
    type: str
    status: str = "True"


class Rule(_Part, frozen=True, kw_only=True):
    """One entry of recovery.rules; it matches if each part that is set matches."""

    action: Annotated[str, one_of("FailJob", "Restart", "RestartUncounted")]
    name: str = ""
    on_exit_codes: ExitCodes | None = None
    on_pod_conditions: tuple[PodCondition, ...] = ()  # one match is enough


class Recovery(_Part, frozen=True, kw_only=True):
    scope: Annotated[str, one_of("Auto", "Replica", "Job")] = "Auto"
    max_restarts: Annotated[int, Meta(ge=0, le=MOST_RESTARTS)] = 10  # within window_s
    window_s: _Positive = 86_400
    max_restarts_without_progress: _Count = 3
    backoff_s: _Count = 1
    node_lost_s: int | None = 40  # None: a node never counts as lost
    termination_s: int | None = 300  # beyond its grace period, until a pod is force-deleted; None: never
    avoid_node_after_faults: int | None = 2  # None: nodes are never avoided because of faults
    avoid_node_wait_s: _Count = 300  # pods may be unschedulable for so long because they avoid nodes
    rules: tuple[Rule, ...] = ()


class Elastic(_Part, frozen=True, kw_only=True):
    """The range of replicas that the job may have."""

    min_replicas: _Replicas
    max_replicas: _Replicas


class ResumeFrom(_Part, frozen=True, kw_only=True):
    """An earlier run on the checkpoint volume; exactly one field is set."""

    job: str | None = None  # in the same namespace
    path: str | None = None  # below the mount


class Checkpoint(_Part, frozen=True, kw_only=True):
    volume: Json
    mount_path: str = "/checkpoints"
    # Trainer: pods get an fsGroup, so that they can write to the volume.
    fs_group_policy: Annotated[str, one_of("Trainer", "None")] = "Trainer"
    resume_from: ResumeFrom | None = None


class Hang(_Part, frozen=True, kw_only=True):
    """When the agents treat the job as hung, and what they do about it.

    timeout_s  seconds without a step; None: derived from the step times
    working_s  seconds without a step of a rank that is at work; None: the agents' default
    """

    timeout_s: _Positive | None = None
    working_s: _Positive | None = None
    action: Annotated[str, one_of("Restart", "Report")] = "Restart"


class SuccessPolicy(_Part, frozen=True, kw_only=True):
    replicas: Annotated[frozenset[int], Meta(min_length=1)]


class Topology(_Part, frozen=True, kw_only=True):
    """All pods in one domain: on nodes with the same value of the label `key`.

    exclusive  no other job has pods in that domain
    """

    key: Annotated[str, Meta(min_length=1)]
    mode: Annotated[str, one_of("Preferred", "Required")] = "Preferred"
    exclusive: bool = False

    @property
    def required(self) -> bool:
        return self.mode == "Required"


class Scheduling(_Part, frozen=True, kw_only=True):
    gang: Annotated[str, one_of("Auto", "None")] = "Auto"  # Auto: where the cluster can
    topology: Topology | None = None


class Network(_Part, frozen=True, kw_only=True):
    policy: Annotated[str, one_of("Isolated", "None")] = "Isolated"
    allow_from: tuple[Json, ...] = ()  # NetworkPolicyPeers that may also connect to the agents


class Keeping(_Part, frozen=True, kw_only=True):
    """How long a finished job is kept; it counts although the rest of the spec is invalid."""

    ttl_s: _Count | None = msgspec.field(default=None, name="ttlSecondsAfterFinished")


class Spec(Keeping, frozen=True, kw_only=True):
    """The spec of a job, with the names of the resource but for a few long ones."""

    template: Json = {}
    replicas: _Replicas = 1
    elastic: Elastic | None = None
    processes_per_replica: int | str = "auto"
    master_port: Annotated[int, Meta(ge=1, le=65535)] = 29500
    suspend: bool = False
    deadline_s: _Positive | None = msgspec.field(default=None, name="activeDeadlineSeconds")
    clean_pods: Annotated[str, one_of("Running", "All", "None")] = msgspec.field(
        default="Running", name="cleanPodPolicy"
    )
    success_policy: SuccessPolicy | None = None
    recovery: Recovery = Recovery()
    hang: Hang = Hang()
    checkpoint: Checkpoint | None = None
    network: Network = Network()
    scheduling: Scheduling = Scheduling()


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The queue of Kueue that decides when the job runs, as the labels of the job say."""

    name: str
    priority_class: str = ""  # a WorkloadPriorityClass; empty: the PriorityClass of the template decides
    max_s: int | None = None  # of running time, all rounds together
    workload: str = ""  # name of a Workload that another controller has made for the job


class Job(Spec, frozen=True, kw_only=True, dict=True):
    """The identity and the spec of one job."""

    namespace: str
    name: str
    uid: str
    generation: int = 1
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    remote: bool = False  # MultiKueue runs a copy of the job in another cluster, here it only waits for it
    queue: Queue | None = None
    asked_replicas: int | None = None  # spec.replicas, if the queue admitted fewer
    error: SpecError | None = None  # if set, all but the identity and ttl_s is a placeholder

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

    @property
    def success(self) -> frozenset[int] | None:
        """Replicas that decide; None: all."""
        return self.success_policy.replicas if self.success_policy else None

    @property
    def topology(self) -> Topology | None:
        return self.scheduling.topology

    @cached_property
    def accelerators(self) -> dict[str, int]:
        """Accelerators of each pod by the name of the resource, such as nvidia.com/gpu."""
        resources = self.trainer_container.get("resources") or {}
        amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        return {
            name: int(quantity.parse(amount) or 0)
            for name, amount in amounts.items()
            if name.endswith("/gpu") or name in ACCELERATORS
        }

    @cached_property
    def processes(self) -> int:
        """Ranks of each pod."""
        given = self.processes_per_replica
        return given if isinstance(given, int) else max(1, sum(self.accelerators.values()))

    @cached_property
    def trainer_container(self) -> Json:
        """The container of the template that runs the ranks."""
        containers: list[Json] = self.template["spec"]["containers"]
        return next((c for c in containers if c.get("name") == names.TRAINER_CONTAINER), containers[0])

    @property
    def trainer(self) -> str:
        """Name of the container that runs the ranks."""
        return str(self.trainer_container["name"])


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
        "finalizers": tuple(meta.get("finalizers") or ()),
        "remote": _remote(raw),
    }
    try:
        queue = _queue(meta.get("labels") or {}, meta.get("annotations") or {})
        spec = read(Spec, _without_never(raw.get("spec")), "spec")
        _check_template(spec.template)
        job = Job(**identity, queue=queue, **msgspec.structs.asdict(spec))
        _check(job)
    except SpecError as error:
        wrong = error
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a shape without a check of its own
        wrong = SpecError("spec", str(error), "compare the spec with `kubectl explain dtj.spec --recursive`")
    else:
        return job
    placeholder = {"spec": {"containers": [{"name": names.TRAINER_CONTAINER}]}}
    return Job(
        **identity, template=placeholder, ttl_s=_ttl_s(raw.get("spec")), clean_pods="None", error=wrong
    )


def _ttl_s(raw: object) -> int | None:
    try:
        return read(Keeping, raw, "spec").ttl_s
    except SpecError:
        return None


def _without_never(raw: Any) -> Any:
    """The spec with None for the word Never; checks the numbers that may be this word."""
    if not isinstance(raw, Mapping) or not isinstance(raw.get("recovery"), Mapping):
        return raw
    recovery = dict(raw["recovery"])
    for name in _OR_NEVER:
        value = recovery.get(name, 1)
        if value != NEVER and (type(value) is not int or not 1 <= value <= _LARGEST):
            raise SpecError(f"spec.recovery.{name}", value, f"must be an integer >= 1, or {NEVER}")
        if value == NEVER:
            recovery[name] = None
    return {**raw, "recovery": recovery}


def _queue(labels: Json, annotations: Json) -> Queue | None:
    """Kueue 0.18 and newer names a prebuilt Workload in an annotation, older ones in a label."""
    name = labels.get(names.QUEUE_NAME)
    if not name:
        return None
    seconds = labels.get(names.QUEUE_MAX_SECONDS)
    if seconds is not None and not (str(seconds).isdecimal() and int(seconds) > 0):
        field = f"metadata.labels.{names.QUEUE_MAX_SECONDS}"
        raise SpecError(field, seconds, "must be a whole number of seconds above 0")
    prebuilt = annotations.get(names.PREBUILT_WORKLOAD) or labels.get(names.PREBUILT_WORKLOAD)
    return Queue(
        name=str(name),
        priority_class=str(labels.get(names.QUEUE_PRIORITY) or ""),
        max_s=None if seconds is None else int(seconds),
        workload=str(prebuilt or ""),
    )


def _check_template(template: Json) -> None:
    """Raise SpecError for what no pod of a job can have."""
    pod = template.get("spec")
    if not isinstance(pod, Mapping) or not pod.get("containers"):
        raise SpecError("spec.template.spec.containers", None, "must have at least one container")
    read(Template, template, "spec.template")
    labels = (template.get("metadata") or {}).get("labels") or {}
    if names.QUEUE_NAME in labels:  # Kueue would queue each pod, and a replaced pod would wait forever
        raise SpecError(
            f"spec.template.metadata.labels[{names.QUEUE_NAME}]",
            labels[names.QUEUE_NAME],
            "must be a label of the job itself: move it to metadata.labels",
        )


def _check(job: Job) -> None:
    """Raise SpecError for what the rules of the schema cannot see."""
    auto = job.processes_per_replica == "auto"
    if not (auto or isinstance(job.processes_per_replica, int)) or not 1 <= job.processes <= MOST_PROCESSES:
        fix = f"must be an integer between 1 and {MOST_PROCESSES}, or auto"
        if auto:
            found = f"auto means {job.processes} here, but {MOST_PROCESSES} is the most"
            fix = f"{found}; set a number, or request fewer"
        raise SpecError("spec.processesPerReplica", job.processes_per_replica, fix)
    trainer = job.trainer_container
    restarts = trainer.get("restartPolicy"), trainer.get("restartPolicyRules") or None
    if restarts not in ((None, None), ("Never", None)):
        number = job.template["spec"]["containers"].index(trainer)
        field = f"spec.template.spec.containers[{number}].restartPolicy"
        raise SpecError(field, restarts[0], f"must be Never, without rules, or absent: {_WHO_RESTARTS}")
    if job.checkpoint is None:
        return
    # Other containers may mount the same volume there, for example to upload checkpoints.
    path = job.checkpoint.mount_path
    taken = [str(mount.get("mountPath")).rstrip("/") for mount in trainer.get("volumeMounts") or ()]
    if path.rstrip("/") in taken:
        fix = f"container {trainer['name']} already mounts a volume there; choose another path"
        raise SpecError("spec.checkpoint.mountPath", path, fix)
