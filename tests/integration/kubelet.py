"""Simulates the scheduler and the kubelets for one namespace.

By default a new pod is placed on a node and becomes ready; it ends when a test says so. A deleted pod
disappears when the kubelet has "stopped" it, as on a real node; until then its name is in use.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import aiohttp

from tests.integration.api import PODS, WITHIN_S, Api, ApiError, NeverHappenedError

Json = dict[str, Any]
# The reason that the API server gives; it stays after the last gate is lifted, until the pod is placed.
GATED = "SchedulingGated"
OUTAGES = (ApiError, aiohttp.ClientError, OSError, TimeoutError, ValueError)


class Kubelet:
    """The current pods of a namespace, and what will happen to them.

    pods     name -> pod as last seen
    born     (name, uid) of every pod that ever existed, in order
    starts   whether new pods start by themselves
    places   whether it also simulates the scheduler; else a pod starts once a real one has bound it
    holds    names of pods that do not stop: once deleted, they keep terminating until they are released
    sick     names of nodes that are Ready, but whose kubelet does nothing: no pod starts there or stops
    """

    def __init__(self, api: Api, namespace: str, *, places: bool = True) -> None:
        self.places = places
        self._api, self._folder = api, PODS.format(namespace)
        self.pods: dict[str, Json] = {}
        self.born: list[tuple[str, str]] = []
        self.starts = True
        self.holds: set[str] = set()
        self.sick: set[str] = set()
        self._known: set[tuple[str, str]] = set()
        self._started: set[str] = set()  # uids; placing a pod is an event too, which must not start it again
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Follow the pods forever; if the API server is unavailable, start again once it is back."""
        async with asyncio.TaskGroup() as work:
            while True:
                with contextlib.suppress(*OUTAGES):
                    await self._follow(work)
                await asyncio.sleep(0.1)  # between two tries

    async def _follow(self, work: asyncio.TaskGroup) -> None:
        listed = await self._api.get(self._folder)
        self.pods = {}
        for pod in listed["items"]:
            await self._see("MODIFIED", pod, work)
        async with self._changed:  # all pods may be gone, after a watch that was cut
            self._changed.notify_all()
        async with aclosing(self._api.follow(self._folder, listed["metadata"]["resourceVersion"])) as events:
            async for kind, pod in events:
                if kind == "ERROR":
                    return
                await self._see(kind, pod, work)

    async def _see(self, kind: str, pod: Json, work: asyncio.TaskGroup) -> None:
        name, born = pod["metadata"]["name"], (pod["metadata"]["name"], pod["metadata"]["uid"])
        if kind == "DELETED":
            self.pods.pop(name, None)
        else:
            if born not in self._known:
                self._known.add(born)
                self.born.append(born)
            self.pods[name] = pod
            work.create_task(self._tend(pod))
        async with self._changed:
            self._changed.notify_all()

    async def _tend(self, pod: Json) -> None:
        """Start or remove a pod as needed; retry until it succeeds."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        while True:
            try:
                return await self._handle(pod)
            except (*OUTAGES, KeyError) as error:
                known = self.pods.get(name)
                if known is None or known["metadata"]["uid"] != uid or getattr(error, "status", 500) < 500:
                    return None  # the pod is gone, or another pod has its name
            await asyncio.sleep(0.2)  # the server is unavailable: pause before the next try

    async def _handle(self, pod: Json) -> None:
        name, meta = pod["metadata"]["name"], pod["metadata"]
        if "deletionTimestamp" in meta:
            if name not in self.holds and pod["spec"].get("nodeName") not in self.sick:
                await self.confirm_stopped(name, meta["uid"])
        elif self.starts and pod["status"].get("phase", "Pending") == "Pending" and not waits(pod):
            placed = "nodeName" in pod["spec"]
            if (placed or self.places) and meta["uid"] not in self._started:
                await self._start_once(name, meta["uid"], placed=placed)

    async def _start_once(self, name: str, uid: str, *, placed: bool) -> None:
        self._started.add(uid)
        try:
            await self.start(name, placed=placed)
        except BaseException:
            self._started.discard(uid)
            raise

    async def start(
        self, name: str, *, placed: bool = False, placed_at: str | None = None, node: str = ""
    ) -> None:
        """Place a pod on a node and make it ready.

        placed_at  the scheduler's timestamp in PodScheduled; None: no timestamp
        node       name of the node; default: the one that the pod selects, else that of its index
        """
        spec = self.pods[name]["spec"]
        selected = spec.get("nodeSelector", {}).get("kubernetes.io/hostname")
        node = spec.get("nodeName") or node or selected or f"node-{name.rpartition('-')[2]}"
        if not placed:
            await self._place(name, node)
        if node in self.sick:
            return
        status = {
            "phase": "Running",
            "podIP": "10.1.0.1",
            "startTime": now(),
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": placed_at},
                {"type": "Ready", "status": "True"},
            ],
            "containerStatuses": [
                container(self.pods[name], ready=True, state={"running": {"startedAt": now()}})
            ],
        }
        await self.set_status(name, status)

    async def _place(self, name: str, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        try:
            await self._api.create(f"{self._folder}/{name}/binding", binding)
        except ApiError as error:
            if error.status != 409:  # already placed, by a call whose answer was lost
                raise

    async def finish(self, name: str, code: int = 0, *, message: str = "") -> None:
        """End the pod's container with an exit code and a termination message."""
        ended = {"exitCode": code, "finishedAt": now(), "reason": "Completed" if code == 0 else "Error"}
        ended |= {"message": message} if message else {}
        status = {
            "phase": "Succeeded" if code == 0 else "Failed",
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "False", "reason": "PodCompleted"},
            ],
            "containerStatuses": [container(self.pods[name], ready=False, state={"terminated": ended})],
        }
        await self.set_status(name, status)

    async def set_status(self, name: str, status: Json) -> None:
        """Merge a pod's status."""
        await self._api.patch(f"{self._folder}/{name}/status", {"status": status})

    async def confirm_stopped(self, name: str, uid: str = "") -> None:
        """Tell the API server that a deleted pod has stopped."""
        self.holds.discard(name)
        conditions = {"preconditions": {"uid": uid}} if uid else {}
        await self._api.delete(f"{self._folder}/{name}", gracePeriodSeconds=0, **conditions)

    async def release(self, name: str) -> None:
        """Stop holding a pod, whether it is already deleted or will be."""
        self.holds.discard(name)
        if name in self.pods:
            await self._tend(self.pods[name])

    async def recover(self, node: str) -> None:
        """Let the kubelet of a sick node do what it has missed."""
        self.sick.discard(node)
        for pod in list(self.pods.values()):
            if pod["spec"].get("nodeName") == node:
                self._started.discard(pod["metadata"]["uid"])
                await self._tend(pod)

    async def until(
        self, holds: Callable[[dict[str, Json]], bool], *, within_s: float = WITHIN_S
    ) -> dict[str, Json]:
        """Wait until `holds` is true for the pods of the namespace, by name."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: holds(self.pods))
                return dict(self.pods)
        seen = {name: pod["status"].get("phase") for name, pod in self.pods.items()}
        raise NeverHappenedError(
            f"the pods did not reach the expected state within {within_s} s; last: {seen}"
        )

    async def until_running(self, *names: str) -> dict[str, Json]:
        """Wait until exactly these pods run."""
        return await self.until(
            lambda pods: set(pods) == set(names) and all(runs(pod) for pod in pods.values())
        )


def runs(pod: Json) -> bool:
    """Whether a pod runs and is not being deleted."""
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def waits(pod: Json) -> bool:
    """Whether the pod has a gate, or a test has marked it as unschedulable, as the scheduler would."""
    conditions = pod["status"].get("conditions", ())
    said = any(
        (each["type"], each["status"]) == ("PodScheduled", "False") and each.get("reason") != GATED
        for each in conditions
    )
    return said or bool(pod["spec"].get("schedulingGates"))


def container(pod: Json, *, ready: bool, state: Json) -> Json:
    """Return the status of the pod's first container."""
    first = pod["spec"]["containers"][0]
    return {
        "name": first["name"],
        "image": first["image"],
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
    }


def now() -> str:
    """Return the time in the format of Kubernetes."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.asynccontextmanager
async def playing(api: Api, namespace: str, *, places: bool = True) -> AsyncIterator[Kubelet]:
    """Run a kubelet for a namespace."""
    kubelet = Kubelet(api, namespace, places=places)
    task = asyncio.create_task(kubelet.run())
    try:
        yield kubelet
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
