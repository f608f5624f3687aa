"""Connects to the coordinator in a helper process, retrying until it succeeds.

Resolving a name and connecting both block, for many seconds while a pod is being replaced. Meanwhile the
agent must continue to read its ranks' output, and it has no threads because it forks. The helper passes the
connected socket to the agent through a socket pair.
"""

import random
import socket
import time
from collections.abc import Callable, Iterator

from dtj.agent.child_process import end_helper, fork_helper

_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
# Attempts of all agents of a job together. Each resolves the name of replica 0: some ten DNS queries.
_ATTEMPTS_PER_S = 200.0
_TIMEOUT_S = 5.0
# Usually replica 0 is still starting. What else it can be, a wrong address for instance, only the user knows.
_TELL_AFTER_S = 30.0


def pauses(agents: int, *, jitter: Callable[[], float]) -> Iterator[float]:
    """Seconds between attempts: from 0.1 s, doubled up to a limit that grows with the agents, at most 5 s.

    jitter  random numbers from 0 to 1, so that agents that start together do not stay together
    """
    pause, longest = _PAUSE_S, min(_LONGEST_PAUSE_S, max(_PAUSE_S, agents / _ATTEMPTS_PER_S))
    while True:
        yield pause * (0.5 + jitter() / 2)
        pause = min(2 * pause, longest)


class Connector:
    """Tries to reach `host:port` until it succeeds or is closed; `agents` of the job may do so at once."""

    def __init__(self, host: str, port: int, *, agents: int, log: Callable[[str], None]) -> None:
        self._ours, theirs = socket.socketpair()
        self._pid = fork_helper(lambda: _connect(host, port, theirs, agents, log), keep=[theirs.fileno()])
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
        end_helper(self._pid)


def _connect(host: str, port: int, results: socket.socket, agents: int, log: Callable[[str], None]) -> None:
    began, tell_after_s = time.monotonic(), _TELL_AFTER_S
    for pause in pauses(agents, jitter=random.random):
        try:
            found = socket.create_connection((host, port), timeout=_TIMEOUT_S)
        except OSError as error:  # no DNS record yet, nothing listens yet, or an old address
            if (lasts_s := time.monotonic() - began) >= tell_after_s:
                tell_after_s = 2 * lasts_s
                why = error.strerror or error
                where = f"replica 0 at {host}, port {port}"
                log(f"cannot reach {where}, for {lasts_s:.0f} s: {why}; trying again")
            time.sleep(pause)
        else:
            socket.send_fds(results, [b"."], [found.fileno()])
            return
