"""Jobs applied -> all their pods created, against a bare loop that posts the very same pods, in turns."""

from __future__ import annotations

import asyncio
import copy
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.bench import report
from tests.bench.rest import Rest, connect
from tests.cluster import install, kwok
from tests.support.kubectl import Kubectl

NAMESPACE = "bench-creation"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
JOBS = f"/apis/dtj.dev/v1alpha1/namespaces/{NAMESPACE}/distributedtrainingjobs"
ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Load:
    """So many jobs of so many pods."""

    jobs: int
    replicas: int

    @property
    def pods(self) -> int:
        """How many pods that makes."""
        return self.jobs * self.replicas

    def manifests(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield path and body of every job; its pods go to KWOK's nodes and stay there."""
        container = {"name": "trainer", "image": "bench", "resources": {"requests": {"cpu": "10m"}}}
        pod = {"containers": [container], **kwok.PLACEMENT}
        for number in range(self.jobs):
            yield (
                JOBS,
                {
                    "apiVersion": "dtj.dev/v1alpha1",
                    "kind": "DistributedTrainingJob",
                    "metadata": {"name": f"bench-{number}"},
                    "spec": {"replicas": self.replicas, "template": {"spec": pod}},
                },
            )


LOADS = (Load(jobs=200, replicas=1), Load(jobs=60, replicas=8))


def main() -> None:
    """Measure and write the sections `creation` and `memory` of the page."""
    kubectl = install.with_operator()
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    replace(kubectl, namespace=NAMESPACE).until("serviceaccount", "default", bool)  # pods are refused before
    try:
        with kwok.nodes(kubectl, count=10):
            rows = asyncio.run(measure(kubectl))
            memory_mib = resident_mib(kubectl)
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    head = ["load", "rounds", "operator, s", "bare loop, s", "ratio, median of the pairs"]
    report.write("creation", report.table(head, rows))
    report.write(
        "memory",
        report.table(["after", "leader, MiB"], [[f"{ROUNDS} rounds of each load", f"{memory_mib:.0f}"]]),
    )


async def measure(kubectl: Kubectl) -> list[list[object]]:
    """Return a row for each load."""
    async with connect(kubectl.kubeconfig) as rest:
        return [await compare(rest, load) for load in LOADS]


async def compare(rest: Rest, load: Load) -> list[object]:
    """Let operator and bare loop take turns over one load."""
    ours, bare = [], []
    for _ in range(ROUNDS):
        took_s, bodies = await by_operator(rest, load)
        ours.append(took_s)
        bare.append(await by_loop(rest, load, bodies))
    ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, bare, strict=True))
    name = f"{load.jobs} jobs x {load.replicas} pods"
    return [name, ROUNDS, report.seconds(ours), report.seconds(bare), f"{ratio:.2f}"]


async def by_operator(rest: Rest, load: Load) -> tuple[float, list[tuple[str, dict[str, Any]]]]:
    """Return the seconds that the operator took, and its children as bodies that can be posted again."""
    took_s = await timed(rest, load, list(load.manifests()))
    children = [(SERVICES, strip(each)) for each in (await rest.list(SERVICES))["items"]]
    children += [(PODS, strip(each)) for each in (await rest.list(PODS))["items"]]
    await rest.delete_all(JOBS)
    await rest.until_empty(JOBS)
    await rest.until_empty(PODS)
    await rest.until_empty(SERVICES)
    return took_s, children


async def by_loop(rest: Rest, load: Load, bodies: list[tuple[str, dict[str, Any]]]) -> float:
    """Return the seconds that posting the same children takes."""
    took_s = await timed(rest, load, bodies)
    await rest.delete_all(PODS)
    for path, body in bodies:
        if path == SERVICES:
            await rest.delete_all(f"{SERVICES}/{body['metadata']['name']}")
    await rest.until_empty(PODS)
    return took_s


async def timed(rest: Rest, load: Load, bodies: list[tuple[str, dict[str, Any]]]) -> float:
    """Post bodies and return the seconds until a watch has shown all the pods of the load."""
    version = (await rest.list(PODS))["metadata"]["resourceVersion"]
    watching = asyncio.create_task(rest.until_seen(PODS, version, "ADDED", load.pods))
    began = time.monotonic()
    await rest.post_all(bodies)
    return await watching - began


def strip(child: dict[str, Any]) -> dict[str, Any]:
    """Return what the operator posted: without what the API server added, and owned by nobody."""
    body = copy.deepcopy(child)
    body.pop("status", None)
    meta = body["metadata"]
    body["metadata"] = {key: meta[key] for key in ("name", "labels") if key in meta}
    for key in ("nodeName", "clusterIPs"):
        body["spec"].pop(key, None)
    # Without its labels the operator does not see it; a single one of ours would cost it a look.
    body["metadata"]["labels"] = {
        f"bench/{key.split('/')[-1]}": value for key, value in meta["labels"].items()
    }
    return body


def resident_mib(kubectl: Kubectl) -> float:
    """Return the resident memory of the leading operator replica, from its own metrics."""
    lease = kubectl(
        "get", "lease", "dtj-operator", "-n", "dtj-system", "-o", "jsonpath={.spec.holderIdentity}"
    )
    pod = lease.split("_")[0]
    text = kubectl("get", "--raw", f"/api/v1/namespaces/dtj-system/pods/{pod}:8080/proxy/metrics")
    match = re.search(r"^process_resident_memory_bytes (\S+)", text, re.MULTILINE)
    assert match, f"{pod} reports no process_resident_memory_bytes"
    return float(match[1]) / 2**20
