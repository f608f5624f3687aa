"""What ends the process, and what kopf is started again after."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from dtj_operator import settings, shell


@pytest.fixture(autouse=True)
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name a cluster that is never asked."""
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}]}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config | {"current-context": "c"}))
    monkeypatch.setenv("KUBECONFIG", str(path))


def test_port_in_use_ends_the_process_with_a_message() -> None:
    with socket.create_server(("", 0)) as theirs:
        port = theirs.getsockname()[1]
        flags = settings.parse([f"--health-port={port}", "--metrics-port=0"], {})
        with pytest.raises(
            shell.CannotStart, match=rf"cannot listen on port {port} \(health\).*--health-port"
        ):
            shell.run(flags)


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

    assert pauses == [2, 4, 8, 16, 32, 60, 60]
