"""First rank 0 closes its output and waits, and rank 1 dies; after the restart both print a line."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

OUT, RANK, LIFE = Path(os.environ["OUT"]), int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]


def wait_for(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.01)


def agent_holds(pipe: str) -> bool:
    found = set()
    for fd in Path(f"/proc/{os.getppid()}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(fd.readlink()))
    return pipe in found


if LIFE == "0" and RANK == 0:
    (OUT / "new").write_text(str(Path("/proc/self/fd/1").readlink()))
    (OUT / "new").rename(OUT / "pipe")
    os.close(1)
    os.close(2)
    signal.pause()
if LIFE == "0":
    wait_for((OUT / "pipe").exists)
    wait_for(lambda: not agent_holds((OUT / "pipe").read_text()))
    os.kill(os.getpid(), signal.SIGKILL)
(OUT / f"rank-{RANK}-lives-again").touch()
wait_for((OUT / "rank-0-lives-again").exists)  # its first process has been reaped by then
print(f"rank {RANK} is heard", flush=True)
