"""gloo's connections of this process, which have to be shut down because gloo cannot abort a collective.

They are recognized by their ports: each rank's gloo listens on ports of its own, and every connection of gloo
begins or ends at one of these. So connections of other threads are left alone, and those that gloo opens only
when they are first needed (TORCH_GLOO_LAZY_INIT=1) are found too.
"""

import contextlib
import os
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

_FDS = Path("/proc/self/fd")  # does not exist on macOS


def listening_ports() -> frozenset[int]:
    """Ports that this process listens on."""
    return frozenset(sock.getsockname()[1] for sock in _sockets() if _listens(sock))


def shut_down(*, own: Collection[int], theirs: Collection[int]) -> None:
    """Shut down the connections to own ports, and those to the ports of other processes.

    Both ends of a connection then fail at once, in any thread.
    """
    for sock in _sockets():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            if not _listens(sock) and (sock.getsockname()[1] in own or sock.getpeername()[1] in theirs):
                sock.shutdown(socket.SHUT_RDWR)


def _sockets() -> Iterator[socket.socket]:
    """Copies of the TCP sockets of this process, each open until the next one."""
    for entry in list(_FDS.iterdir()) if _FDS.exists() else []:
        with contextlib.suppress(OSError):  # the list can change while it is read
            if str(entry.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as sock:
                    if sock.family in {socket.AF_INET, socket.AF_INET6} and sock.type == socket.SOCK_STREAM:
                        yield sock


def _listens(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
