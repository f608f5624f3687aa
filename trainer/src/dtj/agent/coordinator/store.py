"""The rendezvous store (TCPStore) in which the ranks of one generation find each other.

Each generation has its own store on its own port: keys of an earlier generation cannot be mistaken for new
ones, and stopping the earlier store wakes ranks that still wait in it. It is a separate process because its
server is a thread, and the agent, which forks, must have none.
"""

import contextlib
import ctypes
import os
import select
import signal
from typing import Self

from dtj import contract
from dtj.agent.child_process import end_helper, fork_helper
from dtj.errors import MachineError

# Must be below the 20 s after which the other agents treat a silent agent as lost.
_START_S = 15.0
# Without preload its process imports torch first: some seconds, on a busy machine more than 15.
_START_WITHOUT_PRELOAD_S = 60.0


class Store:
    """The agent's side of the store."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    @classmethod
    def start(cls) -> Self:
        """Fork the process and wait some milliseconds until it listens; MachineError if it does not."""
        read, write = os.pipe()
        pid = fork_helper(lambda: _serve(write), keep=[write])
        os.close(write)
        poll = select.poll()  # unlike select(), for any number of open files
        poll.register(read, select.POLLIN)
        with os.fdopen(read) as answer:
            is_preloaded = os.environ.get(contract.PRELOAD) != "0"
            limit_s = _START_S if is_preloaded else _START_WITHOUT_PRELOAD_S
            port = answer.readline() if poll.poll(1000 * limit_s) else ""
        store = cls(pid, int(port or 0))
        if not port:
            store.stop()
            raise MachineError(
                f"the rendezvous store of the ranks did not start within {limit_s:.0f} s",
                fix="check whether this machine is out of memory, processes or ports",
            )
        return store

    def stop(self) -> None:
        """Kill the process and reap it."""
        end_helper(self.pid)


def _serve(write: int) -> None:
    import torch.distributed as dist  # noqa: PLC0415 - imported by the agent before the fork

    from dtj.ranks.world import choose_store  # noqa: PLC0415

    look_up_in_files_only()
    choose_store()
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "0.0.0.0",
        0,
        is_master=True,
        wait_for_workers=False,
        use_libuv=os.environ.get("USE_LIBUV") != "0",
    )
    os.write(write, b"%d\n" % store.port)
    os.close(write)
    while True:
        signal.pause()


def look_up_in_files_only() -> None:
    """Never ask a name server in this process.

    torch looks up the name of every client that connects, one after the other, for messages that are not
    even logged. Where no name server answers, a thousand clients would wait for hours. glibc only.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None)["__nss_configure_lookup"](b"hosts", b"files")
