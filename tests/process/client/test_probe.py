"""The program that `kubectl dtj doctor --try` runs in pods, as processes that meet on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dtj_client.in_pod import probe as pod_probe
from tests.support.ports import free_port

Json = dict[str, Any]


@contextmanager
def probe(port: int, *arguments: str, rank: int = 0) -> Iterator[Json]:
    """Start the program; yield what it has said once it is done; it continues to the end of the block."""
    env = {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "NODE_RANK": str(rank)}
    command = [sys.executable, pod_probe.__file__, *arguments]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found: Json = {}
        while not found.get("done"):
            found |= json.loads(process.stdout.readline())
        try:
            yield found
        finally:
            process.terminate()
    assert process.returncode == 0, "SIGTERM ends it"


def test_member_and_outsider_reach_replica_0_while_it_runs() -> None:
    port = free_port()
    with probe(port) as zero, probe(port, rank=1) as one, probe(port, "127.0.0.1") as outside:
        shm = os.statvfs("/dev/shm")
        assert zero["shm"] == shm.f_blocks * shm.f_frsize
        assert zero.keys() == {"shm", "memory", "done"}
        assert one["resolved_s"] < pod_probe.NAME_WITHIN_S
        assert one["connected"] is True
        assert outside == {"connected": True, "done": True}
