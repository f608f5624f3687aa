"""Runs in a pod, not here: prints what only a pod can know, as one JSON object per line.

python3 -c SOURCE           a member of the job: /dev/shm, the name of replica 0, a connection to it
python3 -c SOURCE ADDRESS   a pod outside the job: whether it can connect to replica 0 at this address

It then waits, because replica 0 has to answer the others; ten minutes later it ends, if its job still exists.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

ENDS_AFTER_S = 600.0
NAME_WITHIN_S = 60.0  # a name is known to the cluster's DNS some seconds after its pod
CONNECT_WITHIN_S = 5.0
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def main(arguments: list[str]) -> socket.socket | None:
    """Print what this pod finds; return what has to stay open."""
    port = int(os.environ["MASTER_PORT"])
    if arguments:
        _say(connected=_connects(arguments[0], port))
        return None
    shm = os.statvfs("/dev/shm")
    _say(shm=shm.f_blocks * shm.f_frsize, memory=_memory_limit())
    if os.environ["NODE_RANK"] == "0":
        return _listen(port)
    started = time.monotonic()
    try:
        address = _resolve(os.environ["MASTER_ADDR"], port, until=started + NAME_WITHIN_S)
    except OSError as error:
        _say(unresolved=f"{os.environ['MASTER_ADDR']}: {error.strerror or error}")
        return None
    _say(resolved_s=round(time.monotonic() - started, 1))
    _say(connected=_connects(address, port))
    return None


def _say(**found: object) -> None:
    print(json.dumps(found), flush=True)


def _memory_limit() -> int | None:
    """Bytes that the container may use; None: no limit, or not known."""
    for path in _MEMORY_LIMITS:
        try:
            said = Path(path).read_text().strip()
        except OSError:
            continue
        return int(said) if said.isdecimal() and int(said) < 2**60 else None
    return None


def _listen(port: int) -> socket.socket:
    """Return a socket to which others can connect: the kernel accepts for us."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6)


def _resolve(name: str, port: int, *, until: float) -> str:
    """The address of a name. Raises OSError if it has none by then."""
    while True:
        try:
            return str(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def _connects(address: str, port: int) -> bool:
    """Whether a connection is accepted. Replica 0 may listen a moment later than we ask."""
    until = time.monotonic() + CONNECT_WITHIN_S
    while time.monotonic() < until:
        try:
            socket.create_connection((address, port), timeout=CONNECT_WITHIN_S).close()
        except OSError:
            time.sleep(0.2)
        else:
            return True
    return False


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # process 1 of a pod ignores it otherwise
    server = main(sys.argv[1:])
    _say(done=True)
    time.sleep(ENDS_AFTER_S)
