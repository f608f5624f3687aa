"""Faults from objects, schemas and agents that are hostile, broken or of another version.

Each may affect its own job, and no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from random import Random
from typing import Any

from aiohttp import web

from tests.chaos.faults import Chaos, injection
from tests.integration import controlplane
from tests.integration.api import JOBS, PODS, ApiError
from tests.integration.kubelet import runs
from tests.support.ports import own_address

Json = dict[str, Any]
AGENT_PORT = 29400
CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{controlplane.CRD}"
# Deeper than Python's parsers go by default. The recorder and the kubelet of the run read it too.
DEPTH = 900


@injection(1)
async def nested_job(stage: Chaos) -> bool:
    """A user creates a job whose pod template is nested deeply."""
    affinity: Json = {}
    for _ in range(DEPTH):
        affinity = {"a": affinity}
    pod = {"containers": [{"name": "trainer", "image": "trainer:1"}], "affinity": affinity}
    name = f"nested-{stage.made}"
    stage.made += 1
    body = {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "template": {"spec": pod}},
    }
    await stage.api.create(JOBS.format(stage.namespace), body)
    stage.strangers.append(stage.path(JOBS, name))
    return True


@injection(1)
async def oversized_pod(stage: Chaos) -> bool:
    """A user creates a pod with our label; a watch event about it has five megabytes."""
    name = f"oversized-{stage.made}"
    stage.made += 1
    container = {"name": "c", "image": "c:1", "env": [{"name": "TEXT", "value": "<" * 800_000}]}
    body = {
        "metadata": {"name": name, "labels": {"dtj.dev/job-name": name}},
        "spec": {"containers": [container]},
    }
    await stage.api.create(PODS.format(stage.namespace), body)
    stage.strangers.append(stage.path(PODS, name))
    return True


@injection(1)
async def remove_crd(stage: Chaos) -> bool:
    """An administrator deletes the CRD, and with it all jobs, and installs it again."""
    await stage.api.delete(CRD)
    try:
        await stage.api.until_answered(CRD, 404)
        await asyncio.sleep(stage.chance.uniform(0, 1.5))  # a random time without it
    finally:
        await asyncio.to_thread(controlplane.install_crd, stage.plane)
    return True


@injection(1)
async def unknown_value(stage: Chaos) -> bool:
    """A newer CRD lets a running job have a value that the operators do not know."""
    name = await stage.some_job("Running")
    if name is None:
        return False
    crd = await stage.api.get(CRD)
    for version in crd["spec"]["versions"]:
        policy = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["cleanPodPolicy"]
        policy.pop("x-kubernetes-validations", None)
        policy["enum"] = [*dict.fromkeys([*policy["enum"], "Later"])]
    await stage.api.patch(CRD, {"spec": {"versions": crd["spec"]["versions"]}})
    path = stage.path(JOBS, name)
    stage.undo.append(partial(stage.api.patch, path, {"spec": {"cleanPodPolicy": "Running"}}))
    for _ in range(50):  # the API server serves the new schema a moment later
        with contextlib.suppress(ApiError):
            await stage.api.patch(path, {"spec": {"cleanPodPolicy": "Later"}})
            return True
        await asyncio.sleep(0.1)  # between two tries
    return False


@injection(2)
async def lying_agent(stage: Chaos) -> bool:
    """The agent of a replica 0 answers nonsense from now on."""
    fitting = sorted(name for name, pod in stage.kubelet.pods.items() if name.endswith("-0") and runs(pod))
    if not fitting:
        return False
    name = stage.chance.choice(fitting)
    await stage.kubelet.set_status(name, {"podIP": stage.agent, "podIPs": [{"ip": stage.agent}]})
    return True


LOST = [{"replica": replica, "seconds": 1e6} for replica in range(4)]
LIES = (
    json.dumps({"job": "job-0", "namespace": "other", "replica": 0, "attempt": 0, "missing": LOST}).encode(),
    json.dumps({"uid": "another", "replica": 0, "attempt": 0, "rejoin": True, "missing": LOST}).encode(),
    b"x" * 2**22,
    b'{"job": "\xff"}',
    b"[" * 100_000,
    b'{"attempt": 1e400}',
)


@contextlib.asynccontextmanager
async def agent(chance: Random) -> AsyncIterator[str]:
    """Serve an agent that lies, talks nonsense, or is slow; yield its address."""

    async def status(_: web.Request) -> web.Response:
        if chance.random() < 0.2:
            await asyncio.sleep(5)  # longer than an operator waits
        return web.Response(body=chance.choice(LIES), content_type="application/json")

    app = web.Application()
    app.router.add_get("/status", status)
    runner = web.AppRunner(app)
    await runner.setup()
    address = own_address()
    await web.TCPSite(runner, address, AGENT_PORT).start()
    try:
        yield address
    finally:
        await runner.cleanup()
