"""What ends the process, and what kopf is started again after."""

import asyncio
import json
import logging
import os
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from dtj_operator import scope, settings, shell
from dtj_operator.kube import config


@pytest.fixture(autouse=True)
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name a cluster that is never asked."""
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    found = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}]}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(found | {"current-context": "c"}))
    monkeypatch.setenv("KUBECONFIG", str(path))


def test_port_in_use_ends_the_process_with_a_message() -> None:
    with socket.create_server(("", 0)) as theirs:
        port = theirs.getsockname()[1]
        flags = settings.parse([f"--health-port={port}", "--metrics-port=0"], {})
        with pytest.raises(
            shell.CannotStart, match=rf"cannot listen on port {port} \(health\).*--health-port"
        ):
            shell.run(flags)


class Served:
    """An operator whose API server serves no kinds; it gets SIGTERM when kopf has asked for all of them."""

    def __init__(self, _: settings.Settings, config: Configuration) -> None:
        site = web.Application()
        site.router.add_get("/api", self._answer)
        site.router.add_get("/apis", self._answer)
        self.jobs, self._asked = SimpleNamespace(note=lambda *_: None), set[str]()
        self._runner, self._config = web.AppRunner(site, shutdown_timeout=0.1), config

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._config.host = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def until_served(self) -> None:
        pass

    async def _answer(self, request: web.Request) -> web.Response:
        self._asked.add(request.path)
        if len(self._asked) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return web.json_response({"versions": [], "groups": []})

    async def stop(self) -> None:
        await self._runner.cleanup()


@pytest.mark.parametrize("flags", [[], ["--namespace=team"]], ids=["all namespaces", "one namespace"])
def test_process_that_gets_sigterm_ends_as_soon_as_all_is_stopped(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """kopf waits five seconds for tasks that are left, such as its own that waits for a flag."""
    configuration = Configuration()

    async def load() -> Configuration:
        return configuration

    async def unchanged(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(config, "load", load)
    monkeypatch.setattr(shell, "App", Served)
    monkeypatch.setattr(scope, "find", lambda *_, within_s: asyncio.sleep(0, ("team",)))
    monkeypatch.setattr(scope, "until_changed", unchanged)
    with caplog.at_level(logging.DEBUG, "kopf"):
        shell.run(settings.parse(flags, {}))
    assert "Signal SIGTERM is received" in caplog.text
    assert "Hung tasks stopping is skipped: no tasks given" in caplog.text


def test_lease_depends_on_what_the_operator_serves_not_on_where_it_runs() -> None:
    here, there = {"POD_NAMESPACE": "a", "POD_NAME": "pod"}, {"POD_NAMESPACE": "b", "POD_NAME": "pod"}
    for flags, expected in (
        ([], ["default"]),
        (["--namespace=team"], ["team"]),
        (["--namespace=b,a"], ["a", "b"]),
    ):
        one, other = settings.parse(flags, here), settings.parse(flags, there)
        assert one.lease_namespaces == other.lease_namespaces == expected
        assert one.holder != other.holder


def test_kopf_is_started_again_ever_more_slowly_if_it_ends_after_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The liveness probe finds no port meanwhile, and must not fail for as long as it may."""
    pauses: list[float] = []
    failures = iter([RuntimeError("watch ended")] * 7)

    def once(_: settings.Settings, memo: Any) -> None:
        memo.app = object()
        if failure := next(failures, None):
            raise failure

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(shell, "_run_once", once)
    monkeypatch.setattr(asyncio, "sleep", pause)
    shell.run(settings.parse([], {}))

    assert pauses == [2, 4, 8, 10, 10, 10, 10]
