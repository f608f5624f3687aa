"""What the agent prepares once for its ranks."""

import gc

import pytest

from dtj.agent.rank.preload import preload


def test_forked_ranks_share_what_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection in a rank would write into each object, and so copy the memory of all imports."""
    for name in ("OMP_NUM_THREADS", "RES_OPTIONS"):
        monkeypatch.setenv(name, "1")
    for name in ("PYTORCH_NVML_BASED_CUDA_CHECK", "TRITON_NVML_BASED_CUDA_CHECK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.delenv("DTJ_PRELOAD", raising=False)
    gc.unfreeze()
    try:
        preload(1)
        import torch

        assert not any(module is torch.__dict__ for module in gc.get_objects())
        assert gc.isenabled()
    finally:
        gc.unfreeze()
