"""The CRD, or the right to read jobs, comes later than the operator; the CRD goes while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.integration import api as rest
from tests.integration import controlplane
from tests.integration.api import JOBS, WITHIN_S, Api
from tests.integration.chart.conftest import Helm
from tests.integration.controlplane import CRD, ControlPlane
from tests.integration.operator import process
from tests.integration.operator.conftest import grant, job
from tests.integration.operator.process import Operator

Json = dict[str, Any]


@pytest.fixture
def own_plane(tmp_path: Path, helm: Helm) -> Iterator[ControlPlane]:
    """Return a control plane without our CRD, and whose roles no other test needs."""
    with controlplane.running(tmp_path) as plane:
        grant(helm, plane)
        plane.kubectl("create", "namespace", "jobs")
        yield plane


async def until_unready(operator: Operator) -> str:
    """Return what /readyz says is wrong; wait until it says anything."""
    url = f"http://127.0.0.1:{operator.health_port}/readyz"
    async with asyncio.timeout(WITHIN_S), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as answer:
                    if answer.status == 503 and "caches" not in (text := await answer.text()):
                        return text
            except aiohttp.ClientError:
                pass  # it is not listening yet, or again
            await asyncio.sleep(0.05)  # between two requests


async def until_handled(api: Api, name: str) -> None:
    """Create a job and wait until the operator has written its status."""
    folder = JOBS.format("jobs")
    await api.create_patiently(folder, job(name))
    await api.until(f"{folder}/{name}", lambda found: bool(found.get("status", {}).get("phase")))


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
