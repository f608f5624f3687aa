"""What ends the process, and what kopf is started again after."""

import asyncio
import json
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Collection, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from dtj_operator import __main__, log, scope, settings, shell
from dtj_operator.app import App
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
        self._task: asyncio.Task[None] | None = None
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

    def doubtful(self) -> Collection[str]:
        return ()

    def start_task(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(coroutine, name=name)

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
        await self._runner.cleanup()


def test_start_after_a_change_knows_which_namespaces_were_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server may be too slow to say so again in time."""
    asked, configuration = asyncio.Event(), Configuration()

    class StopsLater(Served):
        """Only the second one gets SIGTERM."""

        async def _answer(self, request: web.Request) -> web.Response:
            if not asked.is_set():
                self._asked |= {"/never", "/ever"}
                asked.set()
            return await super()._answer(request)

        async def stop(self) -> None:
            assert self._task is not None
            ended.append(self._task.done())
            await super().stop()

    async def load() -> Configuration:
        return configuration

    befores: list[Sequence[str]] = []
    ended: list[bool] = []

    async def find(_: object, __: object, before: Sequence[str], *, within_s: float) -> Sequence[str]:
        befores.append(before)
        return before

    async def until_changed(_: object, __: object, served: Sequence[str], ___: object) -> Sequence[str]:
        if len(served) == 1:
            await asyncio.Event().wait()
        await asked.wait()
        return served[:1]

    monkeypatch.setattr(config, "load", load)
    monkeypatch.setattr(shell, "App", StopsLater)
    monkeypatch.setattr(scope, "find", find)
    monkeypatch.setattr(scope, "until_changed", until_changed)
    shell.run(settings.parse(["--namespace=served,gone"], {}))

    assert befores == [["gone", "served"], ["gone"]]
    assert ended == [False, False], "the process exits if a task of the App ends"


def test_check_of_the_namespaces_that_fails_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a namespace that is deleted or created later would never be noticed."""
    exits: list[int] = []
    configuration = Configuration()

    class Exits(Served):
        """Its tasks are those of the real one."""

        _tasks: ClassVar[list[asyncio.Task[Any]]] = []
        start_task, _task_ended = App.start_task, App._task_ended

    async def load() -> Configuration:
        return configuration

    async def until_changed(*_: object) -> Sequence[str]:
        raise ValueError("not an error of the API server")

    monkeypatch.setattr(config, "load", load)
    monkeypatch.setattr(shell, "App", Exits)
    monkeypatch.setattr(scope, "find", lambda *_, within_s: asyncio.sleep(0, ("team",)))
    monkeypatch.setattr(scope, "until_changed", until_changed)
    monkeypatch.setattr(os, "_exit", exits.append)
    shell.run(settings.parse(["--namespace=team"], {}))

    assert exits == [1]


def test_process_may_open_as_many_files_as_the_system_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each watched namespace has four watches, and processes begin with a limit of 1,024 files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(shell, "run", lambda _: limits.append(resource.getrlimit(resource.RLIMIT_NOFILE)))
    monkeypatch.setattr(log, "configure", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["dtj-operator"])
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
        __main__.main()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert limits == [(before[1], before[1])]


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
