"""The same loads given to our operator and to Kubeflow's PyTorchJob operator, each beside the bare loop."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.bench import report, rig
from tests.bench.creation import Body, Load, by_loop, created, strip
from tests.bench.rig import JOBS, NAMESPACE, PODS, SERVICES, Rig
from tests.bench.usage import resident_mib
from tests.cluster import config, go, kwok, proc, tools
from tests.integration import controlplane
from tests.integration.controlplane import free_ports

ROUNDS = 3
LOADS = (Load(jobs=200, replicas=1), Load(jobs=60, replicas=8), Load(jobs=1, replicas=500))
MODULE, VERSION = "training-operator", "v1.8.1"
SOURCE = "github.com/kubeflow/training-operator"
PYTORCHJOBS = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"
THEIR_NAMESPACE = "kubeflow"
# Where its webhook looks for a certificate, which in a cluster is a mounted Secret.
CERTIFICATES = Path("/tmp/k8s-webhook-server/serving-certs")
START_S = 180
THREADS, QPS, BURST = 16, 500, 1000  # of the tuned one: as many workers as ours, and its client rate
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class System:
    """An operator under measurement.

    path     where its jobs are posted
    running  whether a job of its kind says that all its pods run
    start    starts it on a rig; yields its process id
    """

    name: str
    user: str
    path: str
    manifests: Callable[[Load, str], Iterator[Body]]
    running: Callable[[Json], bool]
    start: Callable[[Rig], contextlib.AbstractAsyncContextManager[int]]


def main() -> None:
    """Measure and write the section `peers` of the page."""
    rows = [row for system in systems() for row in asyncio.run(measure(system))]
    head = [
        "operator",
        "load",
        "all pods created, s",
        "bare loop, s",
        "ratio",
        "jobs/s",
        "writes a job",
        "memory, MiB",
    ]
    report.write("peers", report.table(head, rows))


def systems() -> tuple[System, ...]:
    """Return ours, theirs as it is, and theirs with more workers and a higher client rate."""
    theirs = f"PyTorchJob {VERSION}"

    def peer(name: str, program: Path, *flags: str) -> System:
        @asynccontextmanager
        async def start(bench: Rig) -> AsyncIterator[int]:
            with _pytorchjob_operator(bench, program, flags) as pid:
                yield pid

        return System(
            name=name, user="peer", path=PYTORCHJOBS, manifests=pytorchjobs, running=says_running, start=start
        )

    return (
        System(
            name="ours",
            user=controlplane.OPERATOR_USER,
            path=JOBS,
            manifests=Load.manifests,
            running=lambda job: job.get("status", {}).get("phase") == "Running",
            start=_ours,
        ),
        peer(theirs, tools.ensure("training-operator")["training-operator"]),
        peer(f"{theirs}, tuned", tuned(), f"--controller-threads={THREADS}"),
    )


async def measure(system: System) -> list[list[object]]:
    """Return a row for each load."""
    async with rig.running() as bench, system.start(bench) as pid:
        return [await compare(bench, system, pid, load) for load in LOADS]


async def compare(bench: Rig, system: System, pid: int, load: Load) -> list[object]:
    """Let an operator and the bare loop take turns over one load."""
    ours, bare, writes = [], [], []
    for number in range(ROUNDS):
        asked = bench.requests(system.user)
        jobs = list(system.manifests(load, f"mine{load.jobs}x{load.replicas}-{number}"))
        ours.append(await created(bench.rest, load, jobs))
        await _until_running(bench, system, load)
        writes.append(rig.writes(asked.since()) / load.jobs)
        memory = resident_mib(pid)
        children = [
            (path, strip(each))
            for path in (SERVICES, PODS)
            for each in (await bench.rest.list(path))["items"]
        ]
        await bench.rest.delete_all(system.path)
        await bench.rest.delete_all(PODS)
        for path in (SERVICES, system.path):
            await bench.rest.delete_each(
                path, [each["metadata"]["name"] for each in (await bench.rest.list(path))["items"]]
            )
        for path in (system.path, PODS, SERVICES):
            await bench.rest.until_empty(path)
        bare.append((await by_loop(bench.rest, load, children)).created_s)
    ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, bare, strict=True))
    return [
        system.name,
        load,
        report.seconds(ours),
        report.seconds(bare),
        f"{ratio:.2f}",
        f"{load.jobs / statistics.median(ours):.1f}",
        f"{statistics.median(writes):.1f}",
        f"{memory:.0f}",
    ]


async def _until_running(bench: Rig, system: System, load: Load) -> None:
    listed = await bench.rest.list(system.path)
    done = {job["metadata"]["name"] for job in listed["items"] if system.running(job)}
    async with aclosing(bench.rest.watch(system.path, listed["metadata"]["resourceVersion"])) as events:
        while len(done) < load.jobs:
            _, job = await anext(events)
            if system.running(job):
                done.add(job["metadata"]["name"])


@asynccontextmanager
async def _ours(bench: Rig) -> AsyncIterator[int]:
    async with bench.operator() as operator:
        yield operator.process.pid


def pytorchjobs(load: Load, prefix: str) -> Iterator[Body]:
    """Yield path and body of PyTorchJobs with as many pods: a master, and workers for the others."""
    container = {"name": "pytorch", "image": "bench", "resources": {"requests": {"cpu": "10m"}}}
    template = {"spec": {"containers": [container], **kwok.PLACEMENT}}

    def of(count: int) -> Json:
        return {"replicas": count, "restartPolicy": "OnFailure", "template": template}

    replicas = {"Master": of(1)} | ({"Worker": of(load.replicas - 1)} if load.replicas > 1 else {})
    for number in range(load.jobs):
        meta = {"name": f"{prefix}-{number}"}
        spec = {"pytorchReplicaSpecs": replicas}
        yield (
            PYTORCHJOBS,
            {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": meta, "spec": spec},
        )


def says_running(job: Json) -> bool:
    """Whether a PyTorchJob says that it runs and that every pod is active."""
    status = job.get("status") or {}
    wanted = sum(replica["replicas"] for replica in job["spec"]["pytorchReplicaSpecs"].values())
    active = sum(replica.get("active", 0) for replica in (status.get("replicaStatuses") or {}).values())
    states = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    return states.get("Running") == "True" and active == wanted


@contextlib.contextmanager
def _pytorchjob_operator(bench: Rig, program: Path, flags: tuple[str, ...]) -> Iterator[int]:
    """Have their operator running, with its CRDs and nothing else of its manifests."""
    kubectl, plane = bench.plane.kubectl, bench.plane
    crds = go.module_folder(MODULE, SOURCE) / "manifests" / "base" / "crds"
    kubectl("apply", "--server-side", "-k", str(crds))
    kubectl("wait", "--for=condition=Established", "crd/pytorchjobs.kubeflow.org", "--timeout=30s")
    secret = {"name": "training-operator-webhook-cert", "namespace": THEIR_NAMESPACE}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": THEIR_NAMESPACE}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": secret},
        _unused_webhook(),
    )
    health, metrics, webhook = free_ports(3)
    command = [
        str(program),
        "--enable-scheme=pytorchjob",
        f"--health-probe-bind-address=127.0.0.1:{health}",
        f"--metrics-bind-address=127.0.0.1:{metrics}",
        f"--webhook-server-port={webhook}",
        *flags,
    ]
    environment = {
        **os.environ,
        "KUBECONFIG": str(plane.kubeconfig("peer")),
        "MY_POD_NAMESPACE": THEIR_NAMESPACE,
    }
    CERTIFICATES.mkdir(parents=True, exist_ok=True)
    log = plane.folder / "training-operator.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        made = _until_filled(bench, secret)
        for name in ("tls.crt", "tls.key", "ca.crt", "ca.key"):
            (CERTIFICATES / name).write_bytes(base64.b64decode(made["data"][name]))
        _until_working(process, log)
        yield process.pid
    finally:
        process.kill()
        process.wait()
        for path in CERTIFICATES.glob("*"):
            path.unlink()


def _until_filled(bench: Rig, secret: Json) -> Json:
    """Wait until their operator has put its certificates into its Secret, and return that."""
    kubectl = replace(bench.plane.kubectl, namespace=secret["namespace"])
    return kubectl.until("secret", secret["name"], lambda found: "tls.crt" in found.get("data", {}))


def _until_working(process: subprocess.Popen[bytes], log: Path) -> None:
    """Its health port answers before its controllers work; its log says when those do."""
    deadline = time.monotonic() + START_S
    while "Starting workers" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the training operator does not work:\n{log.read_text()[-3000:]}")
        time.sleep(0.1)  # between two looks


def _unused_webhook() -> Json:
    """Its operator waits for this object; it selects no namespace, so nothing is asked of it."""
    hook = {
        "name": "validator.pytorchjob.training-operator.kubeflow.org",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"url": "https://127.0.0.1:1/unused"},
        "namespaceSelector": {"matchLabels": {"bench/no-such": "namespace"}},
        "rules": [
            {
                "apiGroups": ["kubeflow.org"],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pytorchjobs"],
            }
        ],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "validator.training-operator.kubeflow.org"},
        "webhooks": [hook],
    }


def tuned() -> Path:
    """Their operator with another client rate.

    It has no flag for it, so two constants of its library are other ones; nothing of it is kept here.
    """
    folder = config.cache() / "bin" / f"{MODULE}-{go.module_key(MODULE)}"
    program = folder / f"tuned-{QPS}-{BURST}"
    if program.exists():
        return program
    library = "sigs.k8s.io/controller-runtime"
    with tempfile.TemporaryDirectory() as scratch:
        copied = Path(shutil.copytree(go.module_folder(MODULE, library), Path(scratch, "library")))
        source = copied / "pkg" / "client" / "config" / "config.go"
        text = source.read_text()
        for constant, value in (
            ("cfg.QPS = 20.0", f"cfg.QPS = {QPS}"),
            ("cfg.Burst = 30", f"cfg.Burst = {BURST}"),
        ):
            assert text.count(constant) == 1, f"{source} has changed"
            text = text.replace(constant, value)
        source.write_text(text)
        modules = Path(scratch, "go.mod")
        modules.write_text(
            (config.GO_MODULES / MODULE / "go.mod").read_text() + f"\nreplace {library} => {copied}\n"
        )
        shutil.copy(config.GO_MODULES / MODULE / "go.sum", scratch)
        proc.run(
            go.toolchain(), "build", *go.flags(MODULE), f"-modfile={modules}", "-o", program,
            tools.PROGRAMS["training-operator"].package,
            step="building the tuned training-operator (about 60 s, once)",
            cwd=config.GO_MODULES / MODULE, env=go.environment(),
        )  # fmt: skip
    return program
