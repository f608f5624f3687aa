"""The answers of the probes, and the error for a port that is in use."""

import asyncio
import socket
from functools import partial

import aiohttp
import pytest
from aiohttp import web

from dtj_operator import health, metrics
from tests.support.ports import free_port


def v4(server: web.ServerRunner) -> list[tuple[str, int]]:
    """IPv4 addresses only: with port 0, each address family gets a different port."""
    return [address for address in server.addresses if len(address) == 2]


async def ask(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_error_names_the_port_in_use_and_the_other_port_is_closed() -> None:
    """Otherwise every retry in the same process would find its own port in use."""
    serve = partial(health.serve, live=lambda: None, ready=lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        ours, taken = free_port(), theirs.getsockname()[1]
        with pytest.raises(OSError, match=rf"cannot listen on port {taken} \(metrics\).* --metrics-port"):
            await serve(health_port=ours, metrics_port=taken)
    for server in await serve(health_port=ours, metrics_port=0):
        await server.cleanup()


@pytest.mark.parametrize(("path", "other"), [("/healthz", "/readyz"), ("/readyz", "/healthz")])
async def test_a_probe_says_what_is_wrong(path: str, other: str) -> None:
    wrong: dict[str, str | None] = {"/healthz": None, "/readyz": None}
    servers = await health.serve(
        live=lambda: wrong["/healthz"], ready=lambda: wrong["/readyz"], health_port=0, metrics_port=0
    )
    port, numbers = (next(port for _, port in v4(server)) for server in servers)
    try:
        assert await ask(port, path) == (200, "ok\n")
        wrong[path] = "no data from the pods watch for 301 s"
        assert await ask(port, path) == (503, "no data from the pods watch for 301 s\n")
        assert (await ask(port, other))[0] == 200
        metrics.BUILD.info({"version": "1.2.3"})
        status, page = await ask(numbers, "/metrics")
        assert status == 200
        assert 'dtj_build_info{version="1.2.3"} 1.0' in page
    finally:
        for server in servers:
            await server.cleanup()


async def test_of_too_many_connections_the_oldest_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a pod of any tenant could take the memory of the operator with requests that it never ends."""
    monkeypatch.setattr(health, "MOST_OPEN", 2)
    servers = await health.serve(live=lambda: None, ready=lambda: None, health_port=0, metrics_port=0)
    port = next(port for _, port in v4(servers[0]))
    clients = []
    try:
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nA: b")
            clients.append((reader, writer))
        async with asyncio.timeout(60):
            assert await ask(port, "/healthz") == (200, "ok\n")
            assert [await reader.read() for reader, _ in clients[:3]] == [b""] * 3
    finally:
        for _, writer in clients:
            writer.close()
        for server in servers:
            await server.cleanup()
