"""What the probes say, and that they are served by the loop that does the work."""

import aiohttp
import pytest
from aiohttp import web

from dtj_operator import health
from dtj_operator.health import Health


def v4(server: web.AppRunner) -> list[tuple[str, int]]:
    """Addresses of the older kind; port 0 is another one in each family."""
    return [address for address in server.addresses if len(address) == 2]


async def ask(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize(("path", "other"), [("/healthz", "/readyz"), ("/readyz", "/healthz")])
async def test_a_probe_says_what_is_wrong(path: str, other: str) -> None:
    wrong: dict[str, str | None] = {"/healthz": None, "/readyz": None}
    probes = Health(live=lambda: wrong["/healthz"], ready=lambda: wrong["/readyz"])
    servers = await health.serve(probes, health_port=0, metrics_port=0)
    port, metrics = (next(port for _, port in v4(server)) for server in servers)
    try:
        assert await ask(port, path) == (200, "ok\n")
        wrong[path] = "the watch of pods has been silent for 301 s"
        assert await ask(port, path) == (503, "the watch of pods has been silent for 301 s\n")
        assert (await ask(port, other))[0] == 200
        status, page = await ask(metrics, "/metrics")
        assert status == 200
        assert "dtj_queue_depth" in page
    finally:
        for server in servers:
            await server.cleanup()
