"""Who gets an answer from `kubectl dtj ui`, and how the browser has to treat it."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Any

import pytest

from dtj_client.errors import ClientError
from dtj_client.ui.server import application, serve

TOKEN = "secret"
HERE = "127.0.0.1:8000"


class Cluster:
    """One job, which has changed once."""

    def jobs(self, after: int) -> dict[str, Any] | None:
        return None if after == 1 else {"version": 1, "jobs": [{"name": "<script>"}]}


@dataclass
class Answer:
    code: int
    headers: dict[str, str]
    body: str


async def ask(path: str, *, host: str = HERE, method: str = "GET") -> Answer:
    """Send one request to the application, without a connection."""
    sent: list[Any] = []
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", host.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }

    async def receive() -> Any:
        await asyncio.Event().wait()  # the browser stays

    async def send(message: Any) -> None:
        sent.append(message)

    await application(Cluster(), TOKEN)(scope, receive, send)  # type: ignore[arg-type]
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers, b"".join(each.get("body", b"") for each in sent[1:]).decode())


async def test_jobs_are_sent_until_the_page_has_them() -> None:
    assert '"version":1' in (await ask(f"/{TOKEN}/api/jobs?after=-1")).body
    assert (await ask(f"/{TOKEN}/api/jobs?after=1")).code == 204
    assert (await ask(f"/{TOKEN}/api/jobs?after=x")).code == 200


@pytest.mark.parametrize(
    "path", ["/", "/api/jobs", "/static/app.js", "/secre/", "/secret2/", "/Secret/", "//secret/", "/\u00e9/"]
)
async def test_address_without_the_token_is_refused(path: str) -> None:
    answer = await ask(path)
    assert (answer.code, "token" in answer.body) == (403, True)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[::1]", ""])
async def test_another_host_name_is_refused(host: str) -> None:
    assert (await ask(f"/{TOKEN}/api/jobs", host=host)).code == 400


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1"])
async def test_name_and_address_of_this_machine_are_accepted(host: str) -> None:
    assert (await ask(f"/{TOKEN}/", host=host)).code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(method: str) -> None:
    assert (await ask(f"/{TOKEN}/api/jobs", method=method)).code == 405


@pytest.mark.parametrize("path", ["/static/../server.py", "/static/..%2fserver.py", "/static//etc/passwd"])
async def test_only_the_files_of_the_pages_are_served(path: str) -> None:
    assert (await ask(f"/{TOKEN}{path}")).code == 404


@pytest.mark.parametrize("path", [f"/{TOKEN}/", f"/{TOKEN}/api/jobs", f"/{TOKEN}/static/app.js", "/"])
async def test_browser_may_run_and_load_only_files_of_the_pages(path: str) -> None:
    headers = (await ask(path)).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClientError, match=rf"(?s)port {port} .*in use.*--port"):
            serve(Cluster(), port, print)  # type: ignore[arg-type]
