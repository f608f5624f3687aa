"""What is read from an agent over HTTP, over a real socket."""

import gzip

import pytest
from aiohttp import web

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
