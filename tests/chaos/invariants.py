"""The invariants, as a function over all events of jobs and their children from the API server.

Resource versions order the events of all kinds, so the history is read as one sequence: each invariant is
checked at the event that would break it.

1. A rank never runs twice at the same time, and two attempts of a job never overlap.
2. Counted restarts never exceed maxRestarts if the window is a day or more, longer than any history here;
   counters and attempts never decrease.
3. Succeeded and Failed are final, and no pod is created for a job that is finished or suspended.
4. A job reports a name conflict only if a foreign object has that name.
5. A job that has run never fails because the operator does not understand a value of its spec.
6. In the end nothing is left of a deleted job, and every job is in the state that its spec asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

A_DAY_S = 86_400

JOB, POD, SERVICE, POLICY = "DistributedTrainingJob", "Pod", "Service", "NetworkPolicy"
FINAL = ("Succeeded", "Failed")
BEGUN = ("Starting", "Running", "Recovering")
RESTING = (*FINAL, "Suspended")


@dataclass(frozen=True)
class Event:
    """One watch event of an object of some kind."""

    kind: str
    type: str  # ADDED | MODIFIED | DELETED
    object: Json

    @property
    def version(self) -> int:
        """Return its resource version, which orders the history."""
        return int(self.object["metadata"]["resourceVersion"])

    @property
    def uid(self) -> str:
        """Return the uid of the object."""
        return str(self.object["metadata"]["uid"])


@dataclass(kw_only=True)
class Child:
    """A pod, Service or NetworkPolicy: as it was created, and as it is now."""

    kind: str
    born: Json
    now: Json
    gone: bool = False

    @property
    def owner(self) -> Json:
        """Return the job that it was created for; empty if it has another owner."""
        return controller(self.born)

    @property
    def rank(self) -> str:
        """Return its index at creation: labels can be edited afterwards."""
        return str(self.born["metadata"].get("labels", {}).get("dtj.dev/replica-index"))

    @property
    def attempt(self) -> str:
        """Return its attempt at creation."""
        return str(self.born["metadata"].get("labels", {}).get("dtj.dev/attempt"))

    @property
    def lives(self) -> bool:
        """Whether its containers may still run."""
        return not self.gone and self.now.get("status", {}).get("phase") not in FINAL

    @property
    def label(self) -> str:
        """Return its name in messages."""
        meta = self.born["metadata"]
        return f"{self.kind} {meta['namespace']}/{meta['name']} ({meta['uid'][:8]})"


@dataclass
class World:
    """The state of everything at one moment of the history."""

    jobs: dict[str, Json] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    children: dict[str, Child] = field(default_factory=dict)
    pods: dict[str, list[Child]] = field(default_factory=dict)  # by the uid of the job they were created for
    in_the_way: set[tuple[str, str, str]] = field(default_factory=set)

    def add(self, child: Child, uid: str) -> None:
        """Add a new child."""
        self.children[uid] = child
        if child.kind == POD and child.owner:
            self.pods.setdefault(child.owner["uid"], []).append(child)


def violations(events: Iterable[Event]) -> list[str]:
    """Return all violations at any moment of the history, in order."""
    world, found = World(), []
    for event in sorted(events, key=lambda each: each.version):
        complaints = _job(world, event) if event.kind == JOB else _child(world, event)
        found += [f"at {event.version}: {complaint}" for complaint in complaints]
    return found


def remains(events: Iterable[Event]) -> list[str]:
    """Return what is wrong at the end of the history: orphans, and jobs in a wrong state."""
    world = World()
    for event in sorted(events, key=lambda each: each.version):
        list(_job(world, event) if event.kind == JOB else _child(world, event))
    found = [
        f"{child.label} is left of a deleted job"
        for child in world.children.values()
        if not child.gone and (owner := controller(child.now)) and owner["uid"] not in world.jobs
    ]
    for uid, job in world.jobs.items():
        if complaint := _astray(job, world.pods.get(uid, []), list(world.children.values())):
            found.append(f"job {_name(job)}: {complaint}")
    return found


def _job(world: World, event: Event) -> Iterator[str]:
    before, now = world.jobs.get(event.uid), event.object
    if event.type == "DELETED":
        world.jobs.pop(event.uid, None)
        world.gone.add(event.uid)
        return
    if event.uid in world.gone:
        return  # a list that started before the deletion and arrived after it
    world.jobs[event.uid] = now
    old, new = (before or {}).get("status", {}), now.get("status", {})
    if old.get("phase") in FINAL and new.get("phase") != old["phase"]:
        yield f"job {_name(now)} was {old['phase']} and is {new.get('phase')}"
    for path in (("attempt",), ("restarts", "counted"), ("restarts", "total")):
        if _number(new, path) < _number(old, path):
            yield f"job {_name(now)}: {'.'.join(path)} went from {_number(old, path)} to {_number(new, path)}"
    counted = _number(new, ("restarts", "counted"))
    # A schema of another version may have accepted anything.
    recovery = (now.get("spec") or {}).get("recovery")
    recovery = recovery if isinstance(recovery, dict) else {}
    most = recovery.get("maxRestarts", 10)
    all_count = recovery.get("windowSeconds", A_DAY_S) >= A_DAY_S
    if all_count and counted > max(most, _number(old, ("restarts", "counted"))):
        yield f"job {_name(now)} restarted {counted} times; maxRestarts is {most}"
    for condition in new.get("conditions", ()):
        if condition["reason"] == "BadSpec" and condition["type"] == "Failed" and old.get("phase") in BEGUN:
            yield f"job {_name(now)} was {old['phase']} and failed with BadSpec: {condition['message']}"
        if condition["reason"] == "NameConflict" and not _blocked(world, now, condition["message"]):
            yield f"job {_name(now)} reports a name conflict without one: {condition['message']}"


def _child(world: World, event: Event) -> Iterator[str]:
    meta = event.object["metadata"]
    known = world.children.get(event.uid)
    if controller(event.object).get("name") != _job_name(event):
        world.in_the_way.add((event.kind, meta["namespace"], meta["name"]))
    if known is None:
        known = Child(kind=event.kind, born=event.object, now=event.object)
        if event.kind == POD and known.owner:
            yield from _birth(world, known)
        world.add(known, event.uid)
    known.now = event.object
    known.gone = known.gone or event.type == "DELETED"


def _birth(world: World, pod: Child) -> Iterator[str]:
    uid = pod.owner["uid"]
    for other in world.pods.get(uid, ()):
        if not controller(other.now):
            continue  # a user removed its owner, so the operator must not touch it
        if other.lives and other.rank == pod.rank:
            yield f"{pod.label} was created while {other.label} of the same rank was alive"
        elif other.lives and other.attempt != pod.attempt:
            old = f"{other.label} of {other.attempt}"
            yield f"{pod.label} of attempt {pod.attempt} was created while {old} was alive"
    phase = world.jobs.get(uid, {}).get("status", {}).get("phase")
    if phase in RESTING:
        yield f"{pod.label} was created for a job that is {phase}"


def _blocked(world: World, job: Json, message: str) -> bool:
    """Whether the object that the message names ever had another owner."""
    kind, name = message.split()[:2]
    return (kind, job["metadata"]["namespace"], name) in world.in_the_way


def _astray(job: Json, pods: list[Child], children: list[Child]) -> str:
    """Return why the job is not in the state that its spec asks for; empty if it is."""
    spec, status = job.get("spec") or {}, job.get("status", {})
    phase, here = status.get("phase"), [pod for pod in pods if not pod.gone]
    network = {
        child.kind
        for child in children
        if child.kind in (SERVICE, POLICY)
        and not child.gone
        and child.owner.get("uid") == job["metadata"]["uid"]
    }
    if phase in FINAL:
        leftover = [pod.label for pod in here if pod.lives and spec.get("cleanPodPolicy") != "None"]
        return f"{phase}, but still has {leftover or sorted(network)}" if leftover or network else ""
    if spec.get("suspend"):
        return (
            ""
            if phase == "Suspended" and not here
            else f"should be suspended, is {phase} with {len(here)} pods"
        )
    running = [pod for pod in here if pod.now.get("status", {}).get("phase") in ("Running", "Succeeded")]
    if phase != "Running" or len(running) != spec.get("replicas", 1):
        blocked = [c["message"] for c in status.get("conditions", ()) if c["type"] == "PodsReady"]
        return f"{phase} with {len(running)} pods running or finished; PodsReady says {blocked}"
    missing = {SERVICE, POLICY} - network
    return f"runs without its {', '.join(sorted(missing))}" if missing else ""


def controller(raw: Json) -> Json:
    """Return the owner reference of the job that controls an object; empty if there is none."""
    owners: list[Json] = raw["metadata"].get("ownerReferences") or []
    return next((each for each in owners if each.get("controller") and each["kind"] == JOB), {})


def _job_name(event: Event) -> str:
    """Return the only job that may have an object of this name."""
    name = str(event.object["metadata"]["name"])
    return name.rpartition("-")[0] if event.kind == POD else name


def _number(status: Json, path: tuple[str, ...]) -> int:
    found: Any = status
    for part in path:
        found = (found or {}).get(part)
    return int(found or 0)


def _name(job: Json) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"
