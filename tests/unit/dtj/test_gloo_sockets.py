"""Which connections of a process are gloo's: two ranks in this process."""

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dtj.ranks import gloo_sockets

TIMEOUT = timedelta(seconds=60)


@pytest.mark.parametrize("lazy", ["0", "1"], ids=["connected at once", "connected when needed"])
def test_only_the_connections_of_gloo_are_shut_down(monkeypatch: pytest.MonkeyPatch, lazy: str) -> None:
    """Another thread connects somewhere while the groups open."""
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", lazy)
    store = dist.HashStore()  # type: ignore[attr-defined]
    with socket.create_server(("127.0.0.1", 0)) as service, ThreadPoolExecutor(2) as pool:
        before = gloo_sockets.listening_ports()
        assert service.getsockname()[1] in before
        groups = list(pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, TIMEOUT), range(2)))
        with socket.create_connection(service.getsockname()) as other:
            ports = gloo_sockets.listening_ports() - before
            list(pool.map(sum_up, groups))
            waiting = pool.submit(sum_up, groups[0])
            gloo_sockets.shut_down(own=ports, theirs=ports)
            with pytest.raises(RuntimeError, match="closed by peer"):  # no time-out
                waiting.result()
            accepted, _ = service.accept()
            with accepted:
                other.sendall(b"x")
                assert accepted.recv(1) == b"x"


def sum_up(group: Any) -> None:
    group.allreduce([torch.ones(1)]).wait()
