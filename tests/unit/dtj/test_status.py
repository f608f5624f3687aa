"""What /status says about many ranks, and about ranks of other pods."""

import json
import selectors
import socket
import struct
import threading
import urllib.request
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import pytest

from dtj.agent.coordinator.coordinator import MAX_IN_STATUS, Coordinator
from dtj.agent.coordinator.membership import Membership
from dtj.agent.coordinator.restarts import Restarts
from dtj.agent.coordinator.watch.hang import Watchdog
from dtj.agent.report import status_server
from dtj.agent.report.console import PlainConsole
from dtj.agent.report.status import Status
from dtj.agent.report.status_page import StatusPage
from dtj.agent.report.status_server import StatusServer, _HttpServer
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.protocol import Job, RestartBudget

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def document(steps: dict[int, int]) -> dict[str, Any]:
    """Of replica 0, whose ranks are 0 and 1."""
    status = Status()
    for rank in (0, 1):
        status.started(rank, pid=100 + rank)
    member = Membership(job=Job(processes=2, replicas=3000), restarts=Restarts(budget=RestartBudget()))
    member._gone, member._done = {2, 3}, {2: Ending(rank=2, code=0, at=NOW)}
    with selectors.DefaultSelector() as selector:
        coordinator = Coordinator(member, Watchdog(), selector, log=print)
    coordinator.steps = steps
    return status.document(NOW, job=coordinator.status_fields())


def test_report_about_an_earlier_step_does_not_take_the_step_back() -> None:
    """A save in the background has ended, or the line of a step has been delivered with the next one."""
    status = Status()
    status.started(0, pid=100)
    status.update(0, {"step": 7})
    status.update(0, {"step": 5, "saveSeconds": 1.0, "loss": 0.5})
    found = status.document(NOW, job=None)
    assert (found["step"], found["ranks"][0]["step"], found["loss"]) == (7, 7, 0.5)
    status.started(0, pid=101)
    status.update(0, {"step": 5})
    assert status.document(NOW, job=None)["step"] == 5, "its next life continues from a checkpoint"


def test_ranks_of_other_pods_that_ended_are_not_running() -> None:
    found = document(dict.fromkeys(range(5), 7))["ranks"]
    assert [(each["rank"], each["pid"], each["state"]) for each in found] == [
        (0, 100, "Running"),
        (1, 101, "Running"),
        (2, None, "Done"),
        (3, None, "Failed"),
        (4, None, "Running"),
    ]


def test_of_very_many_ranks_the_lowest_are_listed() -> None:
    found = document(dict.fromkeys(range(5000, -1, -1), 7))["ranks"]
    assert [each["rank"] for each in found] == list(range(MAX_IN_STATUS + 2))


def test_document_that_is_too_large_is_shown_without_its_metrics() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    whole = document(dict.fromkeys(range(4), 7)) | {"metrics": {"loss": 1.0}, "missing": []}
    with ours, theirs:
        server = StatusServer(0, ours)
        for metrics in ({"loss": 1.0}, {str(each): 1.0 for each in range(100_000)}):
            server.publish(whole | {"metrics": metrics})
        assert json.loads(theirs.recv(1 << 20)) == whole
        assert json.loads(theirs.recv(1 << 20)) == whole | {"metrics": {}, "ranks": whole["ranks"][:2]}


def test_no_document_is_due_once_the_server_has_ended_and_its_port_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the agent would build documents without a pause."""
    starts = Mock(side_effect=[Mock(pid=1), OSError(98, "Address already in use")])
    monkeypatch.setattr(StatusServer, "start", starts)
    page = StatusPage("", 1, console=PlainConsole(), log=lambda _: None)
    page.watch(Mock(), lambda: None)
    page.show({})
    assert page.deadline
    assert page.reaped(1)
    page.show({})
    assert page.deadline is None


def test_client_that_hangs_up_is_not_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        _HttpServer("127.0.0.1", 0) as server,
        socket.create_connection(("127.0.0.1", server.server_port)) as client,
    ):
        request, address = server.get_request()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        server.process_request_thread(request, address)
    assert capsys.readouterr() == ("", "")


def test_of_too_many_connections_the_oldest_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a stranger who opens connections and sends nothing would use up the processes of the pod."""
    monkeypatch.setattr(status_server, "_MOST_OPEN", 2)
    with _HttpServer("127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        silent = [socket.create_connection(("127.0.0.1", server.server_port), timeout=60) for _ in range(5)]
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/healthz", timeout=60) as answer:
            assert answer.read() == b"ok\n"
        assert [client.recv(1) for client in silent[:4]] == [b""] * 4
        server.shutdown()
        for client in silent:
            client.close()
