"""Ports of tests."""

from __future__ import annotations

import itertools
import socket

import pytest

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
