"""Ports for servers that tests start."""

import contextlib
import itertools
import os
import random
import socket
from pathlib import Path

_FIRST = 10_000  # of the ports of test processes
_AGENT = 29_400  # tests serve it on addresses of their own; a server on all addresses would be in the way


def free_port() -> int:
    """Return a free port that no outgoing connection and no other test process will get."""
    for port in _ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            _reserve(port)
            return port
    raise AssertionError("cycle has no end")


def published_port() -> int:
    """Return a free port for a container, below those of `free_port` and of outgoing connections.

    Podman redirects a published port without listening on it. If the kernel could give it to a program, too,
    that program would get no connection.
    """
    for port in random.SystemRandom().sample(range(7000, _FIRST), _FIRST - 7000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("three thousand ports are taken")


def own_address(number: int = 0) -> str:
    """Return a loopback address that only this process uses, for servers whose port is fixed.

    number  0 or 1: each process has two
    """
    pid = os.getpid()
    return f"127.{1 + 64 * number + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}"


def _reserve(port: int) -> None:
    """Reserve the port for this process, as long as it lives; OSError if another process has reserved it.

    A server that is killed and started again leaves its port free for a moment. Tests of another checkout
    would take it, if not for this name, which the kernel removes with its process.
    """
    if port not in _reserved:
        _reserved[port] = socket.socket(socket.AF_UNIX)
        try:
            _reserved[port].bind(f"\0dtj-test-port-{port}")
        except OSError:
            _reserved.pop(port).close()
            raise


def _own_ports() -> list[int]:
    """Ports below the kernel's range for outgoing connections; each process of pytest-xdist has its own."""
    kernel = Path("/proc/sys/net/ipv4/ip_local_port_range")
    end = int(kernel.read_text().split()[0]) if kernel.exists() else 32768
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    found = list(
        range(_FIRST + worker, max(end, 20_000), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    )
    found = [port for port in found if port != _AGENT]
    random.SystemRandom().shuffle(found)  # so that another run on this machine starts at another port
    return found


_reserved: dict[int, socket.socket] = {}
_ports = itertools.cycle(_own_ports())
