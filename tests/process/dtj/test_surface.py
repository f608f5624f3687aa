"""The public surface: names, commands, flags. A change here is a change for users."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dtj
from tests.process.dtj.conftest import Finished


@pytest.mark.parametrize(
    "argv",
    [["--help"], ["--version"], ["run", "--help"], ["train", "--help"], ["run", "nowhere.py"]],
    ids=" ".join,
)
def test_help_and_usage_errors_do_not_import_torch(argv: list[str]) -> None:
    code = f"""
import sys
from dtj.cli.commands import main
try:
    main({argv!r})
finally:
    assert not {{"torch", "numpy", "rich"}} & set(sys.modules), "a slow import"
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
    )
    assert "slow import" not in ended.stderr
    assert ended.returncode == (78 if "nowhere.py" in argv else 0)


def test_agent_finds_its_place_before_it_imports_torch() -> None:
    """NumPy and torch read OMP_NUM_THREADS when they are imported: too late, a rank used all cores."""
    code = (
        "import os, sys, dtj.agent.launch as launch; print(launch.Placement.read(os.environ, nproc=2).limits)"
        "; print({'torch', 'numpy'} & set(sys.modules))"
    )
    elastic = {"DTJ_MIN_REPLICAS": "1", "DTJ_MAX_REPLICAS": "2", "MASTER_ADDR": "a-0"}
    mesh = {"DTJ_PARALLEL": "hsdp", "DTJ_MESH": "fsdp=4", "PYTHONPATH": ":".join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | elastic | mesh,
    )
    assert ended.stdout == "Limits(least=1, most=2, excluded=frozenset({1}))\nset()\n"


def test_python_m_dtj_is_the_command_dtj(finish: Callable[..., Finished]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "dtj", "--version"],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
    )
    assert ended.stdout == f"dtj, version {dtj.__version__}\n" == finish("--version").out


def test_ranks_find_slow_imports_already_done(tmp_path: Path) -> None:
    """On a cold start, and after each loss, what strategies and optimizers import late would cost seconds.

    So would a search for NVML's library whenever torch asks for a GPU that is not there.
    """
    script = tmp_path / "script.py"
    late = {"torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.pipelining"}
    late |= {"torch.utils.serialization"}  # by torch.load and torch.save
    script.write_text(
        f"import os, sys; print({late!r} <= set(sys.modules), 'PYTORCH_NVML_BASED_CUDA_CHECK' in os.environ)"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "dtj", "run", "--nproc", "2", script],
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path), "CUDA_VISIBLE_DEVICES": ""},
    )
    assert sorted(ended.stdout.splitlines()) == ["[rank 0] True False", "[rank 1] True False"]
