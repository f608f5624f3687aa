"""--compile: the same training with compiled code."""

import json
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import config, debian
from tests.process.dtj.conftest import PROGRAMS, Command, Finished

PROGRAM = PROGRAMS / "compiled.py"
Finish = Callable[..., Finished]


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    """What torch.compile needs for a CPU: g++ and the headers of Python."""
    missing = [] if shutil.which("g++") else ["g++"]
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append("python3-dev")
    if missing:
        debian.install(*missing, why="the tests of --compile")


def losses(file: Path) -> list[float]:
    lines = map(json.loads, file.read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


# The first time it compiles for about 15 s of processor time per rank.
def test_compiled_model_learns_the_same(
    start: Callable[..., Command], finish: Finish, tmp_path: Path
) -> None:
    plain, compiled = tmp_path / "plain.jsonl", tmp_path / "compiled.jsonl"
    assert finish("run", "--nproc", 2, "--metrics", plain, PROGRAM).code == 0
    kept = {"TORCHINDUCTOR_CACHE_DIR": config.cache() / "inductor"}
    flags = ("run", "--nproc", 2, "--compile", "--metrics", compiled, PROGRAM)
    command = start(*flags, imports=["torch._inductor.compile_fx"], **kept)
    ended = command.wait(deadline_s=480)
    assert ended.code == 0, ended.err
    assert ended.out.count("graphs: 0") == 0
    assert ended.out.count("graphs: ") == 2
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-5)
    assert len(losses(plain)) == 4


def test_missing_compiler_is_reported_before_training(finish: Finish, tmp_path: Path) -> None:
    """As in an image without a compiler."""
    assert shutil.which("g++"), "the fixture installs a compiler"
    ended = finish("run", "--compile", PROGRAM, PATH=tmp_path)
    assert ended.code == 78
    assert "--compile on a CPU needs a C++ compiler, but 'g++' is not in the PATH" in ended.err
    assert "Traceback" not in ended.err
