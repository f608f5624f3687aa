"""The store of a generation: it listens, or fails with an error in bounded time."""

import contextlib
import os
import socket
import time
from collections.abc import Callable

import pytest

from dtj.agent import store
from dtj.agent.store import Store
from dtj.errors import MachineError
from tests.process.dtj.conftest import Finished


def test_store_listens_until_it_is_stopped() -> None:
    found = Store.start()
    with socket.create_connection(("127.0.0.1", found.port)):
        pass
    found.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", found.port))


def test_store_starts_beside_a_thousand_connections() -> None:
    """select() refuses numbers of files from 1,024 on."""
    with contextlib.ExitStack() as files:
        for _ in range(1100):
            files.callback(os.close, os.dup(0))
        Store.start().stop()


@pytest.mark.parametrize("ends", [pytest.param(False, id="it hangs"), pytest.param(True, id="it dies")])
def test_store_that_does_not_start_is_killed_and_reported(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ends: bool
) -> None:
    def serve(_: int) -> None:
        time.sleep(0 if ends else 600)
        raise RuntimeError("no port is free")

    class Seen(Store):
        def __init__(self, pid: int, port: int) -> None:
            super().__init__(pid, port)
            seen.append(pid)

    seen: list[int] = []
    if not ends:  # a store that dies is noticed at once, even if its traceback is slow
        monkeypatch.setattr(store, "_START_S", 0.2)
    monkeypatch.setattr(store, "_serve", serve)
    with pytest.raises(MachineError, match="the rendezvous store of the ranks did not start"):
        Seen.start()
    with pytest.raises(ChildProcessError):
        os.waitpid(seen[0], os.WNOHANG)
    assert ("no port is free" in capfd.readouterr().err) == ends


def test_taken_port_is_named(finish: Callable[..., Finished]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"NNODES": 2, "NODE_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ended = finish("run", "-m", "this", **env)
    assert ended.code == 76
    assert f"cannot listen on port {port} for the other agents of this job" in ended.err
    assert "Traceback" not in ended.err
