"""The agent's side of the process that sends copies of state to the buddy and keeps those of the ward."""

import contextlib
import json
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from dtj.agent.child_process import end_helper, fork_helper
from dtj.agent.wire.link import listen
from dtj.agent.wire.protocol import Keeper
from dtj.copies import keeper
from dtj.copies.buddy import Address

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BACKLOG = 64


class KeeperProcess:
    """A child process; `address` is what the coordinator tells the replica whose copies it keeps."""

    def __init__(self, pid: int, commands: socket.socket, address: Keeper) -> None:
        self.address: Keeper | None = address
        self._pid = pid
        self._commands = commands

    @classmethod
    def start(cls, slots: Mapping[int, Sequence[int]], *, log: Callable[[str], None]) -> Self:
        """Fork it; OSError if it cannot listen. slots: rank of this pod -> file descriptors."""
        listener = listen(0, backlog=_BACKLOG)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        token = secrets.token_hex(16)
        fds = [fd for each in slots.values() for fd in each]
        pid = fork_helper(
            lambda: keeper.run(theirs, listener, token, slots, say=log),
            keep=[theirs.fileno(), listener.fileno(), *fds],
        )
        port = listener.getsockname()[1]
        theirs.close()
        listener.close()
        ours.setblocking(False)
        return cls(pid, ours, Keeper(port=port, token=token, machine=_machine()))

    def fileno(self) -> int:
        """For a selector: readable when the process has ended."""
        return self._commands.fileno()

    def use(self, buddy: Address | None, ward: Sequence[int]) -> None:
        """Send copies to this buddy, and keep those of these ranks, from now on."""
        command: dict[str, Any] = {"buddy": buddy and asdict(buddy), "ward": list(ward)}
        with contextlib.suppress(OSError):
            self._commands.send(json.dumps(command).encode())

    def ended(self) -> None:
        """The process is gone; no agent can send copies to it from now on."""
        self.address = None
        self._commands.close()

    def stop(self) -> None:
        """Kill the process and reap it, if it is still there."""
        if self.address is None:
            return  # its pid may belong to another process by now
        end_helper(self._pid)
        self._commands.close()


def _machine() -> str:
    """An id that containers of one node have in common, since they share its kernel; empty if unknown."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
