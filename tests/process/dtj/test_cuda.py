"""The agent does not fork ranks from a process that has initialized CUDA; the driver's library is a fake."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = """
static int initialized;
int cuInit(unsigned flags) { initialized = 1; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return initialized ? 0 : 3; }
"""
# As a library that looks for a GPU when it is imported, but only if it is imported by the agent.
LIBRARY = """
import ctypes, os
if os.environ.get("DTJ_PRELOAD") != "0":
    ctypes.CDLL("libcuda.so.1").cuInit(0)
"""
RANK = """
import ctypes
print("cuDeviceGetCount:", ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int())))
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_agent_starts_again_without_the_library_that_initialized_cuda(tmp_path: Path) -> None:
    for name, text in (("driver.c", DRIVER), ("sitecustomize.py", LIBRARY), ("rank.py", RANK)):
        (tmp_path / name).write_text(text)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "driver.c"], check=True
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "dtj", "run", str(tmp_path / "rank.py")]
    ended = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("starting again with DTJ_PRELOAD=0") == 1
    assert ended.stdout == "[rank 0] cuDeviceGetCount: 3\n"
