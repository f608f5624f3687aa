"""Connects to the coordinator in a helper process, retrying until it succeeds.

Resolving a name and connecting both block, for many seconds while a pod is being replaced. Meanwhile the
agent must continue to read its ranks' output, and it has no threads because it forks. The helper passes the
connected socket to the agent through a socket pair.
"""

import contextlib
import os
import signal
import socket
import time

from dtj.agent.child_process import fork_helper

_PAUSE_S = 0.1
_TIMEOUT_S = 5.0


class Connector:
    """Tries to reach `host:port` until it succeeds or is closed."""

    def __init__(self, host: str, port: int) -> None:
        self._ours, theirs = socket.socketpair()
        self._pid = fork_helper(lambda: _connect(host, port, theirs))
        theirs.close()

    def fileno(self) -> int:
        """Readable once there is a result."""
        return self._ours.fileno()

    def take(self) -> socket.socket | None:
        """The connected socket; None if the helper was killed."""
        _, fds, _, _ = socket.recv_fds(self._ours, 1, 1)
        self.close()
        return socket.socket(fileno=fds[0]) if fds else None

    def close(self) -> None:
        """Stop trying, or clean up."""
        self._ours.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _connect(host: str, port: int, results: socket.socket) -> None:
    while True:
        with contextlib.suppress(OSError):  # no DNS record yet, nothing listens yet, or an old address
            found = socket.create_connection((host, port), timeout=_TIMEOUT_S)
            socket.send_fds(results, [b"."], [found.fileno()])
            return
        time.sleep(_PAUSE_S)
