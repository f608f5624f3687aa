"""The store of a generation: it listens, or fails with an error in bounded time."""

import socket
from collections.abc import Callable

from tests.process.dtj.conftest import Finished


def test_taken_port_is_named(finish: Callable[..., Finished]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"NNODES": 2, "NODE_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ended = finish("run", "-m", "this", **env)
    assert ended.code == 76
    assert f"cannot listen on port {port} for the other agents of this job" in ended.err
    assert "Traceback" not in ended.err
