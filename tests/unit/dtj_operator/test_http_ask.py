"""What is read from an agent over HTTP, over a real socket."""

import contextlib
import gzip
import socket

import aiohttp
import pytest
from aiohttp import web

from dtj_operator import progress
from dtj_operator.model import names
from dtj_operator.progress import LARGEST_ANSWER, HttpAsk
from tests.unit.dtj_operator.kube.server import Handler, hangs_up, refuses, serving


def sends(body: bytes, **headers: str) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(
            body=body, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )

    return handler


async def asked(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> bytes:
    async with serving(handler) as server:
        monkeypatch.setattr(names, "AGENT_PORT", int(server.url.rpartition(":")[2]))
        ask = HttpAsk()
        try:
            return await ask("127.0.0.1")
        finally:
            await ask.close()


async def test_answer_up_to_the_limit_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(await asked(sends(b"x" * LARGEST_ANSWER), monkeypatch)) == LARGEST_ANSWER


async def test_compressed_answer_is_not_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(b" " * 10**7)

    assert await asked(sends(bomb, Content_Encoding="gzip"), monkeypatch) == bomb


@pytest.mark.parametrize(
    "handler",
    [
        pytest.param(sends(b"x" * (LARGEST_ANSWER + 1)), id="too large"),
        pytest.param(refuses(404), id="not found"),
        pytest.param(hangs_up(), id="no answer"),
    ],
)
async def test_any_other_answer_is_an_error(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - every failure of a poll is treated alike
        await asked(handler, monkeypatch)


async def test_host_that_accepts_no_connection_takes_only_the_shorter_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "CONNECT_TIMEOUT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as waiting:
        for _ in range(2):  # they are never accepted, so the kernel answers no further one
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        monkeypatch.setattr(names, "AGENT_PORT", full.getsockname()[1])
        ask = HttpAsk()
        with pytest.raises(aiohttp.ConnectionTimeoutError):
            await ask("127.0.0.1")
        await ask.close()
