"""[S] 10,000 jobs: the operator on the watch streams of a simulated cluster.

A real API server would not fit beside it on this machine; what the operator reads, keeps and decides is the
same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from aiohttp import web

from dtj_operator import settings
from dtj_operator.model import spec
from dtj_operator.plan.children.env import PodContext
from dtj_operator.plan.children.networking import network_policy, operator_peer, service
from dtj_operator.plan.children.pod import pod_maker
from tests.bench import fleet, report, rig
from tests.bench.usage import usage
from tests.integration.controlplane import ControlPlane
from tests.integration.operator import process
from tests.integration.operator.process import Operator

MANY, REPLICAS = 10_000, 8
EVENTS, PER_S = 20_000, 1000
FAILURES = 200
BOOKMARK_S = 20.0  # the operator treats a silent stream as dead
NAMESPACE = rig.NAMESPACE
GROUP = "/apis/dtj.dev/v1alpha1"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{process.LEASE_NAMESPACE}/leases"
Json = dict[str, Any]


def main() -> None:
    """Measure and write the section `stream` of the page."""
    row = asyncio.run(measure())
    head = [
        "jobs x pods",
        "start -> every status written, s",
        "memory, MiB",
        "writes at rest, a minute",
        "CPU of an event without news, ms",
        "of one with news, ms",
        "rank failed -> replacement created, p50, s",
        "p99, s",
    ]
    report.write("stream", report.table(head, [row]))


async def measure() -> list[object]:
    """Return the row of the table."""
    with tempfile.TemporaryDirectory(prefix="dtj-bench-") as folder:
        async with serving(Cluster()) as cluster:
            plane = cast(ControlPlane, Pretended(folder=Path(folder), url=cluster.url))
            began = time.monotonic()
            async with process.running(plane, rate=rig.REQUESTS_PER_S) as operator:
                await cluster.until(lambda: len(cluster.statuses) == MANY)
                started_s = time.monotonic() - began
                await calm(cluster, operator)
                quiet = await usage(operator)
                written = cluster.written
                await asyncio.sleep(fleet.REST_S)
                at_rest = cluster.written - written
                dull_ms = await _cpu_ms(cluster, operator, lambda old: old)
                news_ms = await _cpu_ms(cluster, operator, _flip)
                took = await _react(cluster)
    return [
        f"{MANY} x {REPLICAS}",
        f"{started_s:.0f}",
        f"{quiet.resident_mib:.0f}",
        at_rest,
        f"{dull_ms:.2f}",
        f"{news_ms:.2f}",
        f"{fleet.quantile(took, 0.5):.2f}",
        f"{fleet.quantile(took, 0.99):.2f}",
    ]


@dataclass(frozen=True, kw_only=True)
class Pretended:
    """The simulated API server's address."""

    folder: Path
    url: str

    def tls(self) -> ssl.SSLContext:
        """Return what a client needs; the server has no certificate."""
        return ssl.create_default_context()

    def kubeconfig(self, user: str, *, server: str = "") -> Path:
        """Write a kubeconfig."""
        path = self.folder / f"kubeconfig-{user}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": server or self.url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(config))
        return path


@dataclass
class Cluster:
    """The simulated cluster: every pod runs, except those in `pods`, which holds the changes.

    late_s  how much later than now each request is answered, watches excepted
    """

    jobs: int = MANY
    replicas: int = REPLICAS
    late_s: float = 0.0
    url: str = ""
    version: int = 1_000_000
    statuses: dict[str, Json] = field(default_factory=dict)
    pods: dict[str, Json] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)  # of jobs
    lease: Json | None = None
    written: int = 0  # write requests, without Leases
    reborn: dict[str, float] = field(default_factory=dict)  # pod -> when its replacement was created
    led_since: dict[str, float] = field(default_factory=dict)  # operator -> when it first held the Lease
    read: set[str] = field(default_factory=set)  # jobs that a reconcile has read
    streams: dict[str, list[asyncio.Queue[bytes]]] = field(default_factory=dict)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __post_init__(self) -> None:
        made_job = _job(self.replicas)
        parsed = spec.parse(made_job)
        self._jobs = [f"sim-{number:05}" for number in range(self.jobs)]
        self._pods = [f"{job}-{index}" for job in self._jobs for index in range(self.replicas)]
        self._job = json.dumps(made_job | {"status": "STATUS"})
        running = {
            "phase": "Running",
            "conditions": [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")],
            "containerStatuses": [{"name": "trainer", "ready": True, "state": {"running": {}}}],
        }
        made = pod_maker(parsed, PodContext(attempt=0, size=self.replicas, restarts_left=10))(0)
        made["status"] = running
        made["metadata"] |= {"uid": "pod-JOB-INDEX", "namespace": NAMESPACE, "resourceVersion": "1"}
        made["metadata"]["labels"]["dtj.dev/replica-index"] = "INDEX"
        made["spec"]["nodeName"] = "NODE"
        self._pod = json.dumps(made).replace("JOB-0", "JOB-INDEX")
        self._children: dict[str, str] = {}
        policy = network_policy(
            parsed, [operator_peer(process.NAMESPACE, settings.parse([], {}).operator_labels)]
        )
        for kind, child in (("services", service(parsed)), ("networkpolicies", policy)):
            child["metadata"] |= {"uid": f"{kind}-JOB", "namespace": NAMESPACE, "resourceVersion": "1"}
            self._children[kind] = json.dumps(child)

    def job(self, name: str) -> str:
        """Return a job with the status that the operator wrote."""
        text = self._job.replace("JOB", name).replace("UID", _uid(name))
        text = text.replace("VERSION", str(self.versions.get(name, 1)))
        return text.replace('"STATUS"', json.dumps(self.statuses.get(name, {})))

    def pod(self, name: str) -> str:
        """Return a pod as it is now."""
        if name in self.pods:
            return json.dumps(self.pods[name])
        job, _, index = name.rpartition("-")
        text = self._pod.replace("JOB", job).replace("UID", _uid(job)).replace("INDEX", index)
        return text.replace("NODE", f"node-{index}")

    def child(self, kind: str, name: str) -> str:
        """Return a Service or a NetworkPolicy."""
        return self._children[kind].replace("JOB", name).replace("UID", _uid(name))

    def everything(self, kind: str) -> tuple[Sequence[str], Callable[[str], str]]:
        """Return the names of a collection, and the function that builds an object from a name."""
        match kind:
            case "distributedtrainingjobs":
                return self._jobs, self.job
            case "pods":
                return self._pods, self.pod
            case "services" | "networkpolicies":
                return self._jobs, lambda name: self.child(kind, name)
        return (), self.job

    def next(self) -> int:
        """Return a new resource version."""
        self.version += 1
        return self.version

    def tell(self, kind: str, event: str, seen: str) -> None:
        """Send an event to all watches."""
        line = f'{{"type": "{event}", "object": {seen}}}\n'.encode()
        for stream in self.streams.get(kind, ()):
            stream.put_nowait(line)

    def fail(self, name: str) -> float:
        """Let a pod fail; return the monotonic time."""
        seen = self.pods[name] = json.loads(self.pod(name))
        ended = {"exitCode": 1, "reason": "Error", "finishedAt": "2026-01-01T00:00:00Z"}
        seen["status"] |= {"phase": "Failed"}
        seen["status"]["containerStatuses"] = [{"name": "trainer", "state": {"terminated": ended}}]
        seen["metadata"]["resourceVersion"] = str(self.next())
        self.tell("pods", "MODIFIED", json.dumps(seen))
        return time.monotonic()

    async def until(self, holds: Callable[[], bool], *, within_s: float = 300) -> None:
        """Wait until a request has made it true; raises TimeoutError if it is late."""
        async with asyncio.timeout(within_s), self.changed:
            await self.changed.wait_for(holds)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer any request."""
        path = request.path
        if self.late_s and "watch" not in request.query:
            await asyncio.sleep(self.late_s)
        if path.startswith(LEASES):
            return await self._lease(request)
        if request.method == "GET":
            return await self._read(request)
        self.written += 1
        answer = await self._write(request, path.split("/"))
        await self._notify()
        return answer

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def _lease(self, request: web.Request) -> web.Response:
        if request.method == "GET" and self.lease is None:
            named = {"name": process.LEASE, "kind": "leases"}
            return web.json_response({"kind": "Status", "reason": "NotFound", "details": named}, status=404)
        if request.method != "GET":
            self.lease = await request.json()
            name = self.lease["spec"]["holderIdentity"].rpartition("/")[2]
            self.led_since.setdefault(name, time.monotonic())
            await self._notify()
        return web.json_response(self.lease)

    async def _read(self, request: web.Request) -> web.StreamResponse:
        if request.path in _DISCOVERY:
            return web.json_response(_DISCOVERY[request.path])
        parts = request.path.split("/")
        if parts[-2] == "distributedtrainingjobs":
            self.read.add(parts[-1])
            await self._notify()
            return web.json_response(text=self.job(parts[-1]))
        kind = parts[-1]
        if "watch" in request.query:
            return await self._stream(request, kind)
        names, make = self.everything(kind)
        if selector := request.query.get("labelSelector", "").partition("=")[2]:
            names = [name for name in names if name.rpartition("-")[0] == selector or name == selector]
        begin, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", len(names) or 1))
        meta = {"resourceVersion": str(self.version)}
        if begin + limit < len(names):
            meta["continue"] = str(begin + limit)
        items = ",".join(make(name) for name in names[begin : begin + limit])
        return web.json_response(
            text=f'{{"kind": "List", "metadata": {json.dumps(meta)}, "items": [{items}]}}'
        )

    async def _stream(self, request: web.Request, kind: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        self.streams.setdefault(kind, []).append(lines)
        with contextlib.suppress(ConnectionError):
            await response.write(self._bookmark())  # else the headers wait for the first event
            while True:
                try:
                    line = await asyncio.wait_for(lines.get(), BOOKMARK_S)
                except TimeoutError:
                    line = self._bookmark()
                await response.write(line)
        self.streams[kind].remove(lines)
        return response

    def _bookmark(self) -> bytes:
        where = {"metadata": {"resourceVersion": str(self.version)}}
        return json.dumps({"type": "BOOKMARK", "object": where}).encode() + b"\n"

    async def _write(self, request: web.Request, parts: list[str]) -> web.Response:
        body = await request.json()
        if parts[-1] == "status":
            name = parts[-2]
            self.statuses[name] = _merge(self.statuses.get(name, {}), body["status"])
            self.versions[name] = self.next()
            job = self.job(name)
            self.tell("distributedtrainingjobs", "MODIFIED", job)
            return web.json_response(text=job)
        if request.method == "DELETE" and parts[-2] == "pods":
            dying = json.loads(self.pod(parts[-1]))
            dying["metadata"] |= {
                "deletionTimestamp": "2026-01-01T00:00:00Z",
                "resourceVersion": str(self.next()),
            }
            answer = json.dumps(dying)
            dying["metadata"]["resourceVersion"] = str(self.next())
            self.tell("pods", "DELETED", json.dumps(dying))
            return web.json_response(text=answer)
        if parts[-1] == "pods":
            name = body["metadata"]["name"]
            self.reborn[name] = time.monotonic()
            meta = {
                "uid": f"again-{self.next()}",
                "namespace": NAMESPACE,
                "resourceVersion": str(self.version),
            }
            body["metadata"] |= meta
            body["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            self.pods[name] = body
        return web.json_response(body, status=201)


def _uid(job: str) -> str:
    return f"uid-of-{job}"


def _job(replicas: int) -> Json:
    """A job with placeholders for the parts that differ."""
    made = fleet.job(0)
    made["spec"]["replicas"] = replicas
    meta = {
        "name": "JOB",
        "namespace": NAMESPACE,
        "uid": "UID",
        "generation": 1,
        "resourceVersion": "VERSION",
    }
    return made | {"metadata": meta}


def _merge(old: Json, patch: Json) -> Json:
    """JSON merge patch, RFC 7386."""
    merged = dict(old)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict) and isinstance(old.get(name), dict):
            merged[name] = _merge(old[name], value)
        else:
            merged[name] = value
    return merged


async def calm(cluster: Cluster, operator: Operator) -> None:
    """Wait until nothing has been written for a while and no job waits to be reconciled."""
    before = -1
    while before != cluster.written or (await usage(operator)).waiting:
        before = cluster.written
        await asyncio.sleep(fleet.CALM_S)


async def _cpu_ms(cluster: Cluster, operator: Operator, change: Callable[[Json], Json]) -> float:
    """Send changes of pods of different jobs at a steady rate; return the operator's CPU time per event."""
    idle = (await usage(operator)).cpu_s
    await asyncio.sleep(10)
    idle_per_s = ((await usage(operator)).cpu_s - idle) / 10
    began, before = time.monotonic(), (await usage(operator)).cpu_s
    for number in range(EVENTS):
        name = f"sim-{number % MANY:05}-{number // MANY}"
        seen = cluster.pods[name] = change(json.loads(cluster.pod(name)))
        seen["metadata"]["resourceVersion"] = str(cluster.next())
        cluster.tell("pods", "MODIFIED", json.dumps(seen))
        if number % 50 == 49:
            await asyncio.sleep(max(0.0, began + number / PER_S - time.monotonic()))
    await calm(cluster, operator)
    spent = (await usage(operator)).cpu_s - before - idle_per_s * (time.monotonic() - began)
    return 1000 * spent / EVENTS


def _flip(old: Json) -> Json:
    """Change a condition of the pod, which a decision may depend on."""
    old["status"]["conditions"][0]["message"] = "said something"
    return old


async def _react(cluster: Cluster) -> list[float]:
    """Fail ranks of different jobs; return for each the seconds until its replacement was created."""
    chance = random.Random(1)
    failed: dict[str, float] = {}
    cluster.reborn.clear()
    for number in chance.sample(range(MANY), FAILURES):
        name = f"sim-{number:05}-{REPLICAS - 1}"
        failed[name] = cluster.fail(name)
        await asyncio.sleep(fleet.PAUSE_S)
    await cluster.until(lambda: failed.keys() <= cluster.reborn.keys())
    return [cluster.reborn[name] - moment for name, moment in failed.items()]


def _discovery() -> Iterator[tuple[str, Json]]:
    common = {"singularName": "", "verbs": ["get", "list", "watch", "patch", "create", "delete"]}
    kind = {"name": "distributedtrainingjobs", "kind": "DistributedTrainingJob", "namespaced": True}
    # kopf begins only once it has found this one too.
    space = {"name": "namespaces", "kind": "Namespace", "namespaced": False}
    version = {"groupVersion": "dtj.dev/v1alpha1", "version": "v1alpha1"}
    group = {"name": "dtj.dev", "versions": [version], "preferredVersion": version}
    yield "/api", {"kind": "APIVersions", "versions": ["v1"]}
    yield "/apis", {"kind": "APIGroupList", "groups": [group]}
    served = {"kind": "APIResourceList", "groupVersion": "v1", "resources": [space | common]}
    yield "/api/v1", served
    resources = [kind | common | {"shortNames": ["dtj"]}]
    yield GROUP, {"kind": "APIResourceList", "groupVersion": "dtj.dev/v1alpha1", "resources": resources}


_DISCOVERY = dict(_discovery())


@asynccontextmanager
async def serving(cluster: Cluster) -> AsyncIterator[Cluster]:
    """Serve a simulated cluster until the block ends."""
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", cluster.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    cluster.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield cluster
    finally:
        await runner.cleanup()
