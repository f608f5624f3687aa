"""JSON, one object a line, over a connected socket: what agents and the coordinator say to each other.

Never blocks. What the socket does not take at once is kept, and written when the other side has read; whoever
does not read for long has lost the connection, by its silence or by how much is kept for it.
"""

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]

_CHUNK_BYTES = 64 * 1024
# Kept for a reader that is slow, or of a line that has no end yet: dozens of the longest messages, those that
# name each rank of a large job.
_KEPT_BYTES = 4 * 1024 * 1024
# Both sides speak at least this often, and take a longer silence for the loss of the other's node.
KEEPALIVE_S = 2.0
SILENCE_S = 20.0


class Link:
    """One end of a connection.

    peer  address of the other end; this machine's where both ends are on it, empty where it is gone already
    """

    def __init__(self, sock: socket.socket, *, now: float) -> None:
        sock.setblocking(False)
        self._is_local = sock.family == socket.AF_UNIX
        if not self._is_local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Asked now: a connection that was reset does not know, and may still have messages to read.
        self.peer = "127.0.0.1" if self._is_local else _peer_of(sock)
        self._sock = sock
        self._rest = b""
        self._unsent = b""
        self._selector: selectors.BaseSelector | None = None
        self.heard_at = now
        self.is_open = True

    def fileno(self) -> int:
        """For a selector."""
        return self._sock.fileno()

    def watch(self, selector: selectors.BaseSelector, on_ready: Callable[[], object]) -> None:
        """Call `on_ready`, which is to call `receive`, whenever there is something to read or to write."""
        self._selector = selector
        selector.register(self, selectors.EVENT_READ, on_ready)

    def send(self, message: Message) -> None:
        """Hand one message to the kernel, as far as it takes it now."""
        self.write(encode(message))

    def write(self, line: bytes) -> None:
        """The same for a message that `encode` has made a line of."""
        self._unsent += line
        self._flush()
        if len(self._unsent) > _KEPT_BYTES:
            self.is_open = False

    def _flush(self) -> None:
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            """Nothing has been read since."""
        except OSError:
            self._unsent, self.is_open = b"", False
        if self._selector:
            key = self._selector.get_key(self)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            if key.events != events:
                self._selector.modify(self, events, key.data)

    def receive(self, now: float) -> list[Message]:
        """What has arrived; afterwards `is_open` tells whether more can come."""
        if self._unsent:
            self._flush()
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
        except (ValueError, RecursionError):
            messages = [None]
        is_agent = all(isinstance(message, dict) for message in messages)
        if not is_agent or len(self._rest) > _KEPT_BYTES:
            self.is_open = False
            return []
        return messages

    def is_silent(self, now: float) -> bool:
        """The other side has said nothing for so long that its node must be gone.

        Never where both are in one process: they were stopped together, as by Ctrl-Z, and go on together.
        """
        return not self._is_local and now - self.heard_at > SILENCE_S

    def close(self) -> None:
        """Tell the other side by the end of the stream."""
        self.is_open = False
        if self._selector:
            self._selector.unregister(self)
            self._selector = None
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # forked processes may hold a copy of the socket
        self._sock.close()

    def wait_closed(self, until: float) -> None:
        """Block until the other side has all and has hung up, at most until then by time.monotonic()."""
        with contextlib.suppress(OSError):
            self._sock.settimeout(max(0.0, until - time.monotonic()))
            self._sock.sendall(self._unsent)
            while (left := until - time.monotonic()) > 0:
                self._sock.settimeout(left)
                if not self._sock.recv(_CHUNK_BYTES):
                    return


def _peer_of(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return ""


def encode(message: Message) -> bytes:
    """As it goes over the connection."""
    return json.dumps(message).encode() + b"\n"
