"""Network namespaces on this machine, as pods on one switch; packets between them can be dropped.

Needs root and `ip` and `iptables`; `lacking` says what is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.cluster import debian

_PACKAGES = {"ip": "iproute2", "iptables": "iptables"}
_CLONE_NEWNET = 0x40000000  # from Linux's sched.h


def lacking() -> str:
    """Why network namespaces cannot be used here; empty if they can."""
    missing = [tool for tool in _PACKAGES if not shutil.which(tool)]
    if missing and debian.can_install():
        debian.install(*(_PACKAGES[tool] for tool in missing), why="tests with network namespaces")
    elif missing:
        return f"{' and '.join(missing)} not installed"
    tried = subprocess.run(
        ["unshare", "--net", "iptables", "-L"], capture_output=True, text=True, check=False
    )
    return (
        "" if tried.returncode == 0 else f"no permission to create network namespaces: {tried.stderr.strip()}"
    )


class Networks:
    """`count` namespaces; pod k has the address 10.77.0.<k+1> on its eth0."""

    def __init__(self, count: int) -> None:
        self._switch = f"dtj-{os.getpid()}-switch"
        self._names = [f"dtj-{os.getpid()}-{pod}" for pod in range(count)]

    def up(self) -> None:
        """Create them."""
        self._ip("netns", "add", self._switch)
        self._ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        self._ip("-n", self._switch, "link", "set", "br0", "up")
        for pod, name in enumerate(self._names):
            self._ip("netns", "add", name)
            ours = ("type", "veth", "peer", "name", f"port{pod}", "netns", self._switch)
            self._ip("-n", name, "link", "add", "eth0", *ours)
            self._ip("-n", name, "addr", "add", f"{self.address(pod)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self._ip("-n", name, "link", "set", device, "up")
            self._ip("-n", self._switch, "link", "set", f"port{pod}", "master", "br0", "up")

    def down(self) -> None:
        """Remove those that exist."""
        for name in (*self._names, self._switch):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    @staticmethod
    def address(pod: int) -> str:
        """The address of a pod."""
        return f"10.77.0.{pod + 1}"

    def name(self, pod: int) -> str:
        """The name of a pod's namespace, for `enter`."""
        return self._names[pod]

    @contextlib.contextmanager
    def cut(self, one: int, other: int, *, port: int | None = None) -> Iterator[None]:
        """Drop packets between two pods, only those of a port if it is given, without an error to either."""
        which = ["-p", "tcp", "-m", "multiport", "--ports", str(port)] if port else []
        rules = [("INPUT", "-s"), ("OUTPUT", "-d")]
        for chain, side in rules:
            self._iptables(one, "-A", chain, side, self.address(other), *which, "-j", "DROP")
        try:
            yield
        finally:
            for chain, side in rules:
                self._iptables(one, "-D", chain, side, self.address(other), *which, "-j", "DROP")

    def _iptables(self, pod: int, *words: str) -> None:
        subprocess.run(["ip", "netns", "exec", self.name(pod), "iptables", *words], check=True)

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)


def enter(name: str) -> None:
    """Move this process, which has one thread, to a network namespace; its children are there too."""
    with Path("/run/netns", name).open("rb") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")


@contextlib.contextmanager
def networks(count: int) -> Iterator[Networks]:
    """Create `count` namespaces, and remove them at the end."""
    found = Networks(count)
    try:
        found.up()
        yield found
    finally:
        found.down()
