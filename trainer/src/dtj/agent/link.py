"""JSON, one object a line, over a connected socket: what agents and the coordinator say to each other.

Never blocks. Messages are few and small, so one that does not fit into the socket's buffer means that nobody
has read for a long time, and counts as the end of the connection.
"""

import contextlib
import json
import socket
import time
from typing import Any

Message = dict[str, Any]

_CHUNK_BYTES = 64 * 1024
# Both sides speak at least this often, and take a longer silence for the loss of the other's node.
KEEPALIVE_S = 2.0
SILENCE_S = 20.0


class Link:
    """One end of a connection."""

    def __init__(self, sock: socket.socket, *, now: float) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._rest = b""
        self.heard_at = now
        self.is_open = True

    def fileno(self) -> int:
        """For a selector."""
        return self._sock.fileno()

    @property
    def peer(self) -> str:
        """Address of the other end; this machine's where both ends are on it."""
        return "127.0.0.1" if self._sock.family == socket.AF_UNIX else str(self._sock.getpeername()[0])

    def send(self, message: Message) -> None:
        """Hand one message to the kernel; a connection that does not take it is over."""
        line = json.dumps(message).encode() + b"\n"
        try:
            if self._sock.send(line) < len(line):
                self.is_open = False
        except OSError:
            self.is_open = False

    def receive(self, now: float) -> list[Message]:
        """What has arrived; afterwards `is_open` tells whether more can come."""
        try:
            data = self._sock.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.is_open = self.is_open and bool(data)
        self.heard_at = now
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            messages = [None]
        if not all(isinstance(message, dict) for message in messages):  # whoever this is, it is no agent
            self.is_open = False
            return []
        return messages

    def is_silent(self, now: float) -> bool:
        """The other side has said nothing for so long that its node must be gone."""
        return now - self.heard_at > SILENCE_S

    def close(self) -> None:
        """Tell the other side by the end of the stream."""
        self.is_open = False
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # forked processes may hold a copy of the socket
        self._sock.close()

    def wait_closed(self, until: float) -> None:
        """Block until the other side has hung up, at most until the given time of time.monotonic()."""
        with contextlib.suppress(OSError):
            while (left := until - time.monotonic()) > 0:
                self._sock.settimeout(left)
                if not self._sock.recv(_CHUNK_BYTES):
                    return
