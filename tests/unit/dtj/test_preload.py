"""What the agent prepares once for its ranks."""

import gc
import importlib.metadata
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtj.agent.rank import preload as module
from dtj.agent.rank.preload import preload
from dtj.errors import RecipeError


@pytest.fixture
def preloaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process after the agent's preparation."""
    for name in ("OMP_NUM_THREADS", "RES_OPTIONS"):
        monkeypatch.setenv(name, "1")
    for name in ("PYTORCH_NVML_BASED_CUDA_CHECK", "TRITON_NVML_BASED_CUDA_CHECK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("USE_LIBUV", "")  # removed afterwards
    monkeypatch.delenv("USE_LIBUV")
    monkeypatch.delenv("DTJ_PRELOAD", raising=False)
    gc.unfreeze()
    try:
        preload(1)
        yield
    finally:
        gc.unfreeze()


@pytest.mark.usefixtures("preloaded")
def test_forked_ranks_share_what_was_imported() -> None:
    """A collection in a rank would write into each object, and so copy the memory of all imports."""
    import torch

    assert not any(module is torch.__dict__ for module in gc.get_objects())
    assert gc.isenabled()


@pytest.mark.usefixtures("preloaded")
def test_rank_does_not_look_for_its_backend_among_all_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import Backend

    if not hasattr(Backend, "_ensure_backend_registered"):
        pytest.skip("this torch looks for no backends")
    monkeypatch.setattr(importlib.metadata, "entry_points", None)
    Backend._ensure_backend_registered("gloo")


@pytest.mark.usefixtures("preloaded")
def test_rank_inherits_what_the_agent_found_out() -> None:
    """Whether torch has libuv, and which libraries of operators need not be unregistered at the end."""
    assert os.environ["USE_LIBUV"] in {"0", "1"}
    left = [alive for each in [*weakref.finalize._registry] if (alive := each.peek())]  # type: ignore[attr-defined]
    assert not [library for library, function, _, _ in left if function.__module__ == "torch.library"]


def test_pod_without_a_folder_for_temporary_files_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr(module, "_SHARED_MEMORY", str(tmp_path))
    module._find_temporary_folder()
    assert os.environ["TMPDIR"] == str(tmp_path)
    monkeypatch.setattr(module, "_SHARED_MEMORY", str(tmp_path / "nothing"))
    with pytest.raises(RecipeError, match=r"no folder for temporary files is writable.*\n  fix: mount a"):
        module._find_temporary_folder()
