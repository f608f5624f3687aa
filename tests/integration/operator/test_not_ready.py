"""What the operator needs is missing: the CRD, a right, an API group. It says so, and never exits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.integration import api as rest
from tests.integration import controlplane
from tests.integration.api import JOBS, PODS, WITHIN_S, Api
from tests.integration.chart.conftest import Helm
from tests.integration.controlplane import CRD, ControlPlane
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster, grant, job
from tests.integration.operator.process import Operator
from tests.support.faultproxy import Fault, FaultProxy

Json = dict[str, Any]


@pytest.fixture
def own_plane(tmp_path: Path, helm: Helm) -> Iterator[ControlPlane]:
    """Return a control plane without our CRD, and whose roles no other test needs."""
    with controlplane.running(tmp_path) as plane:
        grant(helm, plane)
        plane.kubectl("create", "namespace", "jobs")
        yield plane


def not_waiting_for_lists(text: str) -> bool:
    """Whether an operator that has just started would not say this."""
    return "caches" not in text


def beginning(words: str) -> Callable[[str], bool]:
    """Return a predicate: a text begins with these words."""
    return lambda text: text.startswith(words)


async def until_unready(operator: Operator, awaited: Callable[[str], bool] = not_waiting_for_lists) -> str:
    """Return what /readyz says is wrong; wait until it says what is awaited."""
    url = f"http://127.0.0.1:{operator.health_port}/readyz"
    async with asyncio.timeout(WITHIN_S), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as answer:
                    if answer.status == 503 and awaited(text := await answer.text()):
                        return text
            except aiohttp.ClientError:
                pass  # it is not listening yet, or again
            await asyncio.sleep(0.05)  # between two requests


async def until_handled(api: Api, name: str) -> None:
    """Create a job and wait until the operator has written its status."""
    folder = JOBS.format("jobs")
    await api.create_patiently(folder, job(name))
    await api.until(f"{folder}/{name}", lambda found: bool(found.get("status", {}).get("phase")))


@pytest.mark.long(25)
async def test_operator_waits_for_its_crd_and_survives_its_deletion(own_plane: ControlPlane):
    expected = "the API server does not serve distributedtrainingjobs dtj.dev/v1alpha1: install the CRD\n"
    operator = await process.start(own_plane)
    try:
        async with rest.connect(own_plane) as api:
            for name in ("first", "second"):
                assert await until_unready(operator) == expected
                await asyncio.to_thread(controlplane.install_crd, own_plane)
                await operator.ready()
                await until_handled(api, name)
                own_plane.kubectl("delete", "crd", CRD)
            assert await until_unready(operator) == expected
            assert operator.process.returncode is None
    finally:
        await operator.kill()


ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/dtj-operator-dtj-system"


def without_list(rule: Json) -> Json:
    """Return a rule of a role without the right to list jobs."""
    if "distributedtrainingjobs" not in rule["resources"]:
        return rule
    return {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "list"]}


async def test_operator_waits_for_the_right_to_list_jobs(own_plane: ControlPlane):
    controlplane.install_crd(own_plane)
    folder = JOBS.format("jobs")
    async with rest.connect(own_plane) as api, rest.connect(own_plane, "operator") as itself:
        rules = (await api.get(ROLE))["rules"]
        await api.patch(ROLE, {"rules": [without_list(rule) for rule in rules]})
        await itself.until_answered(folder, 403)
        operator = await process.start(own_plane, watch="jobs")
        try:
            told = await until_unready(operator)
            assert f"cannot read the jobs: GET {folder}: 403 Forbidden" in told
            who = f'User "{controlplane.OPERATOR_USER}"'
            assert f'{who} cannot list resource "distributedtrainingjobs"' in told
            await api.patch(ROLE, {"rules": rules})
            await operator.ready()
            await until_handled(api, "job")
            assert operator.process.returncode is None
        finally:
            await operator.kill()


RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
LEASE_ROLE = f"{RBAC}/namespaces/default/roles/dtj-operator-dtj-system-lease"
# name -> (path of the role, resource, what /readyz says without the rules about it)
NEEDED = {
    "pods": (ROLE, "pods", "caches not filled yet: pods: GET /api/v1/pods: 403 Forbidden: "),
    "services": (ROLE, "services", "caches not filled yet: services: GET /api/v1/services: 403 Forbidden: "),
    "policies": (
        ROLE,
        "networkpolicies",
        "caches not filled yet: networkpolicies: GET /apis/networking.k8s.io/v1/networkpolicies: 403 ",
    ),
    "status": (
        ROLE,
        "distributedtrainingjobs/status",
        "the operator may not patch distributedtrainingjobs/status in all namespaces: bind the roles",
    ),
    "lease": (LEASE_ROLE, "leases", "cannot use the Lease: GET /apis/coordination.k8s.io/v1/"),
}


async def until_refused(itself: Api, rule: Json, resource: str) -> None:
    """Ask until the operator may not do what a rule allowed: a change takes effect a moment later."""
    kind, _, part = resource.partition("/")
    act = {"verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": kind, "subresource": part}
    review = {"spec": {"resourceAttributes": {**act, "namespace": "default", "name": process.LEASE}}}
    deadline = time.monotonic() + WITHIN_S
    while (await itself.create(REVIEWS, review))["status"]["allowed"]:
        assert time.monotonic() < deadline, f"the right {act} is still given"
        await asyncio.sleep(0.02)  # between two requests


@pytest.mark.long(20)
async def test_missing_right_is_named_until_it_is_given(own_plane: ControlPlane):
    controlplane.install_crd(own_plane)
    async with rest.connect(own_plane) as api, rest.connect(own_plane, "operator") as itself:
        for name, (path, resource, expected) in NEEDED.items():
            rules = (await api.get(path))["rules"]
            taken = [rule for rule in rules if resource in rule["resources"]]
            await api.patch(path, {"rules": [rule for rule in rules if rule not in taken]})
            await until_refused(itself, taken[0], resource)
            operator = await process.start(own_plane, identity=name, resync_s=1)
            try:
                await until_unready(operator, beginning(expected))
                await api.patch(path, {"rules": rules})
                await operator.ready()
                await until_handled(api, name)
                assert operator.process.returncode is None
            finally:
                await operator.kill()
                await process.remove_lease(own_plane, name)


OPTIONAL = ("nodes", "events", "podgroups")


async def test_operator_works_without_the_rights_that_are_optional(own_plane: ControlPlane):
    controlplane.install_crd(own_plane)
    nodes = f"{RBAC}/clusterroles/dtj-operator-dtj-system-nodes"
    node_leases = f"{RBAC}/namespaces/kube-node-lease/roles/dtj-operator-dtj-system-nodes"
    async with rest.connect(own_plane) as api, rest.connect(own_plane, "operator") as itself:
        rules = (await api.get(ROLE))["rules"]
        kept = [rule for rule in rules if not {*OPTIONAL} & {*rule["resources"]}]
        assert len(kept) == len(rules) - 2
        await api.patch(ROLE, {"rules": kept})
        await api.delete(nodes)
        await api.delete(node_leases)
        await itself.until_answered("/api/v1/nodes", 403)
        async with process.kept(own_plane):
            await until_handled(api, "job")
            await api.until_any(PODS.format("jobs"), lambda pod: pod["metadata"]["name"] == "job-1")


# API group that is not served -> what /readyz says
NOT_SERVED = {
    "/apis/networking.k8s.io/": "caches not filled yet: networkpolicies: GET /apis/networking.k8s.io/v1/",
    "/apis/coordination.k8s.io/": "cannot use the Lease: GET /apis/coordination.k8s.io/v1/",
}


@pytest.mark.parametrize("group", [*NOT_SERVED, "/apis/events.k8s.io/", "/apis/authorization.k8s.io/"])
async def test_missing_api_group_is_named_or_not_needed(granted: ControlPlane, cluster: Cluster, group: str):
    def asks(request: web.Request) -> bool:
        return request.path.startswith(group)

    async with FaultProxy(granted.url, granted.tls()).serving() as proxy:
        proxy.inject(Fault(asks, status=404, times=1_000_000))
        operator = await process.start(granted, watch=cluster.namespace, server=proxy.url, resync_s=1)
        try:
            if expected := NOT_SERVED.get(group):
                await until_unready(operator, beginning(expected))
                proxy.clear()
            await operator.ready()
            await cluster.submit()
            await cluster.until(lambda job: bool(job["status"].get("phase")))
            assert operator.process.returncode is None
        finally:
            await operator.kill()
            await process.remove_lease(granted, operator.identity)
