"""Shared by the trainer's tests: programs, sizes, and fixtures that run the real `dtj` command."""

import re
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import torch

from dtj.models.gpt import Shape
from tests.support.commands import Command, Finished, Start, children, commands, is_dead, wait_for
from tests.support.commands import warm as warm_context
from tests.support.ports import free_port

__all__ = ["Command", "Finished", "Start", "children", "free_port", "is_dead", "wait_for"]

torch.set_num_threads(1)  # two test processes with two threads each would be slower on two cores
PROGRAMS = Path(__file__).parent / "programs"
SMALL = PROGRAMS / "small.py"
STEPS = 16
SIZES = {"STEPS": STEPS, "SAMPLES": 96}
SHAPE = Shape(vocabulary=32, context=8, layers=2, heads=4, width=16)  # of programs/gpt.py


def losses(out: str) -> list[float]:
    """Losses of all logged steps as printed, to four decimal places."""
    return [float(number) for number in re.findall(r"  loss (\S+)", out)]


@pytest.fixture(scope="session")
def warm() -> ForkServerContext:
    """The server process that has torch imported; commands are forked from it."""
    return warm_context()


@pytest.fixture
def start(warm: ForkServerContext, tmp_path: Path) -> Iterator[Start]:
    """start("run", "script.py", STEPS="3") starts `dtj run script.py`; keywords are environment variables."""
    with commands(warm, tmp_path) as begin:
        yield begin


@pytest.fixture
def finish(start: Start) -> Callable[..., Finished]:
    """Like start, but waits for the end."""
    return lambda *argv, **env: start(*argv, **env).wait()


@pytest.fixture(scope="session")
def finish_once(
    warm: ForkServerContext, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Finished]]:
    """Like finish, for runs that several tests compare with."""
    with commands(warm, tmp_path_factory.mktemp("once")) as begin:
        yield lambda *argv, **env: begin(*argv, **env).wait()


@pytest.fixture(scope="session")
def unbroken(
    tmp_path_factory: pytest.TempPathFactory, finish_once: Callable[..., Finished]
) -> Callable[..., Path]:
    """Returns the folder of a run without faults, by its number of ranks; each is run once."""
    found: dict[tuple[object, ...], Path] = {}

    def folder(nproc: int, **env: object) -> Path:
        key = (nproc, *sorted(env.items()))
        if key not in found:
            found[key] = tmp_path_factory.mktemp("unbroken")
            ended = finish_once("run", "--nproc", nproc, SMALL, OUT=found[key], **SIZES, **env)
            assert ended.code == 0, ended.err
        return found[key]

    return folder
