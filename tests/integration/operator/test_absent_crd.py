"""The CRD comes later than the operator, and goes while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def own_plane(tmp_path: Path, helm: Helm) -> Iterator[ControlPlane]:
    """Return a control plane without our CRD, which other tests need."""
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
    await api.create_patiently(JOBS.format("jobs"), job(name))
    await api.until(f"{JOBS.format('jobs')}/{name}", lambda found: bool(found.get("status", {}).get("phase")))


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
