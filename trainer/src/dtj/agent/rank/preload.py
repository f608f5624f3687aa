"""Imports and environment that the agent prepares once for all ranks that it forks."""

import atexit
import gc
import importlib
import os
import sys
import tempfile
from pathlib import Path

from dtj import contract
from dtj.agent.process_end import leave_operators
from dtj.errors import RecipeError

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
_SHARED_MEMORY = "/dev/shm"
# DDP and the optimizers load torch._dynamo, torch.load and torch.save `serialization`; to load a sharded
# state, also a copy in memory, needs `sharded`; `start` is what dtj.init loads, with all strategies.
MODULES = (
    "torch._dynamo",
    "torch.utils.serialization",
    "torch.nn.parallel",
    "torch.distributed.pipelining",
    "dtj.checkpoint.sharded",
    "dtj.loop",
    "dtj.start",
)


def preload(nthreads: int) -> None:
    """Import what ranks would import late: all of them at once, and again after each loss."""
    os.environ.setdefault("OMP_NUM_THREADS", str(nthreads))  # read when the libraries are loaded
    # torch looks up the name of every address that it connects to: a lost packet must cost 1 s, not 5.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:5")
    # The agent must not initialize CUDA: a forked rank could not use it. With these, libraries that look for
    # a GPU when they are imported ask NVML, which needs no initialization.
    os.environ.setdefault(NVML_CHECK, "1")
    os.environ.setdefault("TRITON_NVML_BASED_CUDA_CHECK", "1")
    _find_temporary_folder()
    if os.environ.get(contract.PRELOAD) == "0":
        return
    gc.disable()  # the imports make hundreds of thousands of objects, of which hardly any is garbage
    try:
        for name in MODULES:
            importlib.import_module(name)
        find_libuv()
        register_gloo()
        share_with_forks()
    finally:
        gc.enable()


def search(folders: str) -> None:
    """Import from the folders of a PYTHONPATH that was set after Python had read its own."""
    sys.path[:0] = [str(Path(each).absolute()) for each in folders.split(os.pathsep) if folders]


def find_libuv() -> None:
    """Ask torch whether it has libuv: it answers by an exception in C++, which costs a rank 2.5 ms."""
    importlib.import_module("dtj.ranks.world").choose_store()  # keeps the answer in the environment


def register_gloo() -> None:
    """Let torch find the backend that all ranks use.

    torch 2.15 looks for it among all installed packages when a group is opened: 9 ms of CPU time in a rank
    if there are 235. Not NCCL, which depends on a variable that a program may set.
    """
    backend = importlib.import_module("torch.distributed").Backend
    if register := getattr(backend, "_ensure_backend_registered", None):  # torch before 2.15 has it built in
        register("gloo")


def share_with_forks() -> None:
    """Keep the garbage collector off the objects that exist now, so that forked processes share their memory.

    A collection writes into the header of each object that it visits, and a write copies the page: 100 MB and
    0.4 s of CPU time in each rank. None comes first: it would take 0.3 s to find 7,000 objects among 350,000.
    """
    leave_operators()
    gc.freeze()
    atexit.register(gc.unfreeze)  # else libraries whose objects are left at the end report leaks


def _find_temporary_folder() -> None:
    """Importing torch needs one; in a pod with a read-only root only shared memory may be writable.

    RecipeError if that is read-only, too.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        if not os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
            raise RecipeError(
                f"no folder for temporary files is writable, neither /tmp nor {_SHARED_MEMORY}",
                fix="mount a volume at /tmp (emptyDir: {}), or set TMPDIR to a folder that can be written",
            ) from error
        os.environ["TMPDIR"] = _SHARED_MEMORY
