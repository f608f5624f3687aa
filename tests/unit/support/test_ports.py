"""Ports of tests."""

from __future__ import annotations

import itertools
import socket

import pytest

from dtj_operator.model.names import AGENT_PORT
from tests.support import ports


def test_port_that_another_process_has_reserved_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ports.free_port(), ports.free_port()
    for port in (first, second):
        ports._reserved.pop(port).close()
    monkeypatch.setattr(ports, "_ports", itertools.cycle((first, second)))
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"\0dtj-test-port-{first}")
        assert ports.free_port() == second


def test_process_gets_its_own_port_again_after_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_ports", itertools.cycle((ports.free_port(),)))
    assert ports.free_port() == ports.free_port()


def test_port_of_the_agent_is_given_to_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tests serve it on a loopback address of their own; operators listen on all addresses."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "1")
    assert AGENT_PORT not in ports._own_ports()
