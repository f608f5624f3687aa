"""The agent does not fork ranks from a process that has initialized CUDA; the driver's library is a fake."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = """
static int initialized;
int cuInit(unsigned flags) { initialized = 1; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return initialized ? 0 : 3; }
"""
# As a library that looks for a GPU when it is imported, but only if it is imported by the agent. The agent
# imports nothing large beside it: torch takes two seconds of CPU time.
LIBRARY = """
import ctypes, os
if os.environ.get("DTJ_PRELOAD") != "0":
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    from dtj.agent.rank import preload
    preload.MODULES = ("json.tool",)
    preload.find_libuv = preload.register_gloo = lambda: None
"""
# While the agent imports modules for its ranks, after it has begun to handle signals.
ASKS_TO_STOP = """
import signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "json.tool" and os.environ.get("DTJ_PRELOAD") != "0":
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGTERM)
sys.meta_path.insert(0, Finder())
"""
RANK = """
import ctypes
print("cuDeviceGetCount:", ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int())))
"""


def run(tmp_path: Path, library: str) -> subprocess.CompletedProcess[str]:
    for name, text in (("driver.c", DRIVER), ("sitecustomize.py", library), ("rank.py", RANK)):
        (tmp_path / name).write_text(text)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "driver.c"], check=True
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "dtj", "run", str(tmp_path / "rank.py")]
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_agent_starts_again_without_the_library_that_initialized_cuda(tmp_path: Path) -> None:
    ended = run(tmp_path, LIBRARY)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("starting again with DTJ_PRELOAD=0") == 1
    assert ended.stdout == "[rank 0] cuDeviceGetCount: 3\n"


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_request_to_stop_is_kept_while_the_agent_starts_again(tmp_path: Path) -> None:
    """It came before, while modules were imported: the handlers end with the old program."""
    asked = LIBRARY + ASKS_TO_STOP
    ended = run(tmp_path, asked)
    assert ended.stderr.count("starting again with DTJ_PRELOAD=0") == 1
    assert ended.returncode == 128 + signal.SIGTERM
    assert ended.stdout == "", "no rank was started"
