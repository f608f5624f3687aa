"""Messages between agents and the coordinator: JSON, one object a line, over a connected socket.

Never blocks. What the socket does not accept at once is buffered and written later. A peer that does not read
for long loses the connection, because it is silent or because its buffer is full.
"""

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

Message = dict[str, Any]

_CHUNK_BYTES = 64 * 1024
# Limit of each buffer, for a slow reader and for a line without an end yet: hundreds of the longest messages,
# which list each rank of a pod.
_KEPT_BYTES = 4 * 1024 * 1024
# Both sides send at least every KEEPALIVE_S and treat SILENCE_S without a message as loss of the other.
KEEPALIVE_S = 2.0
SILENCE_S = 20.0
# All agents of a large job together send so many messages a second, but each at least one every few seconds.
_MESSAGES_PER_S = 1000.0
_LONGEST_PACE_S = 5.0


def pace_s(agents: int, *, least_s: float) -> float:
    """Seconds between two messages of an agent: `least_s`, and longer in a job with thousands of agents."""
    return max(least_s, min(_LONGEST_PACE_S, agents / _MESSAGES_PER_S))


class Link:
    """One end of a connection.

    peer  address of the other end: 127.0.0.1 if both ends are in one process, empty if it is gone already
    is_local  both ends are in one process
    """

    def __init__(self, sock: socket.socket, *, now: float) -> None:
        sock.setblocking(False)
        self.is_local = sock.family == socket.AF_UNIX
        if not self.is_local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Read now: after a reset the address is unknown, although there may be messages left to read.
        self.peer = "127.0.0.1" if self.is_local else _peer_of(sock)
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
        """Call `on_ready`, which must call `receive`, whenever the socket is ready to read or write."""
        self._selector = selector
        selector.register(self, selectors.EVENT_READ, on_ready)

    def send(self, message: Message) -> None:
        """Send one message; what the kernel does not accept now is buffered."""
        self.write(encode(message))

    def write(self, line: bytes) -> None:
        """Send a message that `encode` has turned into a line."""
        self._unsent += line
        self._flush()
        if len(self._unsent) > _KEPT_BYTES:
            self.is_open = False

    def _flush(self) -> None:
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            pass  # the other side has not read since
        except OSError:
            self._unsent, self.is_open = b"", False
        if self._selector:
            key = self._selector.get_key(self)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            if key.events != events:
                self._selector.modify(self, events, key.data)

    def receive(self, now: float) -> list[Message]:
        """The messages that have arrived; afterwards `is_open` says whether more can come."""
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
        """The other side has sent nothing for so long that it counts as lost.

        Never true if both ends are in one process: Ctrl-Z stops and continues both together.
        """
        return not self.is_local and now - self.heard_at > SILENCE_S

    def close(self) -> None:
        """Close the connection; the other side sees the end of the stream."""
        self.is_open = False
        if self._selector:
            self._selector.unregister(self)
            self._selector = None
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # forked processes may hold a copy of the socket
        self._sock.close()

    def wait_closed(self, until: float) -> None:
        """Block until the other side has read everything and hung up, at most until `until` (monotonic)."""
        with contextlib.suppress(OSError):
            self._sock.settimeout(max(0.0, until - time.monotonic()))
            self._sock.sendall(self._unsent)
            while (left := until - time.monotonic()) > 0:
                self._sock.settimeout(left)
                if not self._sock.recv(_CHUNK_BYTES):
                    return


def listen(port: int, *, backlog: int) -> socket.socket:
    """Listen on all interfaces, for IPv4 and, if this machine has it, IPv6; OSError if the port is taken."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=backlog)


def _peer_of(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return ""


def encode(message: Message) -> bytes:
    """The line that is sent over the connection."""
    return json.dumps(message, default=_fields).encode() + b"\n"


def _fields(value: Any) -> Any:
    """Of a dataclass; one that a line may be too short for has a method for that."""
    return value.to_json() if hasattr(value, "to_json") else vars(value)


def free_ports(count: int) -> Sequence[int]:
    """Ports that are free now, all different."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
