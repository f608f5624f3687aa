"""The command `dtj`. Imports nothing that takes time, before a signal can be kept.

The kernel ignores a SIGTERM that process 1 of a container neither handles nor blocks. The agent handles it
once its modules are imported, which takes a second on a busy machine; until then it is blocked.
"""

import os
import signal
import sys

_AGENTS = ("run", "train")


def main() -> None:
    """Run the command of sys.argv."""
    if os.getpid() == 1 and sys.argv[1:2] and sys.argv[1] in _AGENTS:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until signals.SignalPipe
    open_closed_streams()
    from dtj.cli import commands  # noqa: PLC0415

    commands.main()


def open_closed_streams() -> None:
    """Open the standard streams that this process was started without, as by some supervisors of services.

    Else the agent's pipes get their numbers, which a rank needs for its own output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
