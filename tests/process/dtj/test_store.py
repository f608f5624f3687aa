"""The store of a generation: it listens, or fails with an error in bounded time."""

import contextlib
import ctypes
import faulthandler
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from dtj.agent.child_process import fork_helper
from dtj.agent.coordinator import store
from dtj.agent.coordinator.store import Store
from dtj.errors import MachineError
from dtj.ranks.world import choose_store
from tests.process.dtj.conftest import Finished
from tests.support.ports import own_address


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


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs root, for a name server of its own"
)
def test_store_asks_no_name_server_who_its_clients_are(tmp_path: Path) -> None:
    """It would ask for one client after the other, and each answer can take seconds."""

    def connects() -> None:
        libc = ctypes.CDLL(None)
        new_namespace, private, bind = 0x20000, 0x44000, 0x1000
        assert libc.unshare(new_namespace) == 0
        assert libc.mount(b"none", b"/", None, private, None) == 0
        assert libc.mount(bytes(tmp_path / "resolv.conf"), b"/etc/resolv.conf", None, bind, None) == 0
        os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
        found = Store.start()
        store.look_up_in_files_only()  # for the client, in this process
        dist.TCPStore("127.0.0.1", found.port, is_master=False).set("seen", "1")  # type: ignore[attr-defined]
        found.stop()
        (tmp_path / "done").touch()
        asks = "import socket; socket.gethostbyname('last')"
        subprocess.run([sys.executable, "-c", asks], capture_output=True, check=False)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address := own_address(), 53))
        (tmp_path / "resolv.conf").write_text(f"nameserver {address}\n")
        os.waitpid(fork_helper(connects), 0)
        assert (tmp_path / "done").exists()
        first, _ = server.recvfrom(512)
    assert b"last" in first


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs root, for a network of its own"
)
def test_whether_torch_has_libuv_is_found_without_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection can take minutes, even to a port of this process, if packets to it go elsewhere."""
    monkeypatch.delenv("USE_LIBUV", raising=False)

    def asks() -> None:
        new_network = 0x40000000
        assert ctypes.CDLL(None).unshare(new_network) == 0  # where even the loopback device is down
        faulthandler.dump_traceback_later(60, exit=True)
        choose_store()
        (tmp_path / "found").write_text(os.environ["USE_LIBUV"])

    os.waitpid(fork_helper(asks), 0)
    assert (tmp_path / "found").read_text() == "1"


def test_taken_port_is_named(finish: Callable[..., Finished]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"NNODES": 2, "NODE_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ended = finish("run", "-m", "this", **env)
    assert ended.code == 76
    assert f"cannot listen on port {port} for the other agents of this job" in ended.err
    assert "Traceback" not in ended.err
