"""A script that holds shared memory is killed, and then waits for what it left to be freed."""

import os
import signal
import sys
import time
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

# A test forks the agent from a process that may have started a tracker, for itself.
resource_tracker._resource_tracker._fd = None  # type: ignore[attr-defined]
note = Path(sys.argv[1])
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    note.write_text(SharedMemory(create=True, size=8).name)
    os.kill(os.getpid(), signal.SIGKILL)
segment = Path("/dev/shm") / note.read_text()
end = time.monotonic() + 200
while segment.exists() and time.monotonic() < end:
    time.sleep(0.01)
sys.exit("the segment is left" if segment.exists() else None)
