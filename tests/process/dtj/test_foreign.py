"""Scripts that do not use dtj give the same result as under torchrun: in one pod, in two, after a crash."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.process.dtj.conftest import PROGRAMS, Finished, Start, free_port

FOREIGN = PROGRAMS / "foreign"
SCRIPTS = [
    pytest.param(("env_ddp.py",), id="plain env://"),
    pytest.param(("torchrun_tutorial.py", "--total-epochs", "4"), id="a torchrun tutorial"),
    pytest.param(("with_lightning.py",), id="Lightning"),
    pytest.param(("with_accelerate.py",), id="Accelerate"),
]
# In one pod they have the variables that torchrun sets: test_script_finds_the_variables_that_torchrun_sets.
OF_LIBRARIES = ("with_lightning.py", "with_accelerate.py")
LIBRARIES = {"with_lightning.py": ["pytorch_lightning"]}  # whose import takes seconds in each rank


def torchrun(start: Start, *argv: object, **how: Any) -> str:
    """The output of two ranks."""
    ranks = ("--standalone", "--nproc-per-node", 2)
    forked = ("--run-path", "--start-method", "fork")  # by torchrun itself, which has torch imported
    ended = start("torchrun", *ranks, *forked, *argv, PYTHONPATH=FOREIGN, **how).wait()
    assert ended.code == 0, ended.err
    return ended.out


def two_pods(start: Start, *argv: object, **env: Any) -> list[Finished]:
    """The same in two pods with a rank each, with the operator's variables."""
    place = {"NNODES": 2, "NPROC_PER_NODE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": free_port()}
    job = {"DTJ_JOB": "foreign", "DTJ_JOB_UID": "0b5c", "DTJ_MAX_RESTARTS": 1}
    pods = [
        start("run", "--termination-log", os.devnull, *argv, NODE_RANK=n, **place, **job, **env)
        for n in range(2)
    ]
    return [pod.wait() for pod in pods]


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """One folder for each way to run the script."""
    found = [tmp_path / name for name in ("torchrun", "one-pod", "two-pods")]
    for folder in found:
        folder.mkdir()
    return found


def weights(folder: Path) -> list[dict[str, torch.Tensor]]:
    """The final parameters of each of the two ranks."""
    return [torch.load(folder / f"weights-{rank}.pt") for rank in range(2)]


def notes(folder: Path) -> list[list[str]]:
    return [(folder / f"notes-{rank}.txt").read_text().splitlines() for rank in range(2)]


@pytest.mark.parametrize("script", SCRIPTS)
def test_same_parameters_as_under_torchrun_and_restarted_from_its_own_checkpoint(
    start: Start, folders: list[Path], script: tuple[str, ...]
) -> None:
    name, *words = script
    reference, one, two = folders
    compared = [one, two]
    once: dict[str, Any] = {"imports": LIBRARIES.get(name, ())}
    # Without it Accelerate trains in each rank for itself on CPUs; dtj sets it.
    torchrun(start, FOREIGN / name, reference, *words, **once, ACCELERATE_USE_CPU=1)

    if name in OF_LIBRARIES:
        compared.remove(one)
    else:
        ended = start("run", "--nproc", 2, FOREIGN / name, one, *words, **once).wait()
        assert ended.code == 0, ended.err
        assert notes(one) == [["world 2 begins at 0"]] * 2
    pods = two_pods(start, FOREIGN / name, two, *words, **once, CRASH="1@2")
    assert [pod.code for pod in pods] == [0, 0], [pod.err for pod in pods]

    assert notes(reference) == [["world 2 begins at 0"]] * 2
    assert notes(two) == [["world 2 begins at 0", "world 2 begins at 2"]] * 2
    expected, *others = [found for folder in (reference, *compared) for found in weights(folder)]
    for other in others:
        torch.testing.assert_close(other, expected, rtol=0, atol=0)


def set_seed_in_a_later_life(seed: int) -> None:
    """As accelerate's, but in its first life rank 1 is killed."""
    from accelerate.utils.random import set_seed  # type: ignore[import-untyped]

    if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
        os.kill(os.getpid(), signal.SIGKILL)
    set_seed(seed)


@pytest.mark.parametrize("script", ["test_script", "test_sync"])
def test_script_that_comes_with_accelerate_runs_unchanged_also_after_a_rank_is_killed(
    start: Start, script: str
) -> None:
    """Both of them set a seed in the middle, before the ranks train."""
    ended = start(
        *("run", "--nproc", 2, "--max-restarts", 1, "-m", f"accelerate.test_utils.scripts.{script}"),
        imports=["accelerate.test_utils"],
        changed={"accelerate.utils.set_seed": set_seed_in_a_later_life},
        ACCELERATE_USE_CPU=1,
    ).wait()
    assert ended.code == 0, ended.err
    assert "rank 1 was killed by SIGKILL" in ended.err
    assert "generation 2: restarted all ranks" in ended.err


def test_script_finds_the_variables_that_torchrun_sets(start: Start) -> None:
    script = FOREIGN / "variables.py"
    under_torchrun = set(torchrun(start, script).split())
    ended = start("run", "--nproc", 2, script).wait()
    ours = set(ended.out.removeprefix("[rank 0] ").split())
    left_out = {
        "TORCHELASTIC_SIGNALS_TO_HANDLE",  # only used by torchrun itself
    }
    assert under_torchrun - ours == left_out


def test_script_that_sets_no_seed_draws_other_numbers_on_each_rank_and_after_a_restart(start: Start) -> None:
    """As under torchrun, whose ranks do not share the generators of a process that they are forked from."""
    ended = start("run", "--nproc", 2, "--max-restarts", 1, FOREIGN / "draws.py").wait()
    assert ended.code == 0, ended.err
    drawn = [number for line in ended.out.splitlines() for number in line.split()[2:]]  # after "[rank 0]"
    assert len(set(drawn)) == len(drawn) >= 6  # rank 1 may have been replaced before it drew


def test_shared_memory_of_a_script_that_is_killed_is_freed(start: Start, tmp_path: Path) -> None:
    """By the process that Python starts for that, as under torchrun."""
    ended = start("run", "--max-restarts", 1, FOREIGN / "shares.py", tmp_path / "note").wait()
    assert ended.code == 0, ended.err


def test_script_opens_its_process_group_again_and_again(finish: Callable[..., Finished]) -> None:
    """Under torchrun a rank may find the addresses of the group before, and fail to connect.

    And if it sets MASTER_PORT, as it does at last, all ranks wait for a store that none serves.
    """
    ended = finish("run", "--nproc", 2, FOREIGN / "opens_again.py", OWN_PORT=free_port())
    assert ended.code == 0, ended.err
    assert ended.out.count("done") == 2


def test_script_that_starts_the_processes_of_its_group_itself(finish: Callable[..., Finished]) -> None:
    ended = finish("run", FOREIGN / "own_processes.py", OWN_PORT=free_port())
    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == [f"[rank 0] process {n} has 3" for n in range(2)]


def test_exception_that_record_wrote_is_the_failure_of_a_rank_that_reports_none(
    start: Start, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    ended = start("run", "--termination-log", log, FOREIGN / "recorded.py").wait()
    assert ended.code == 1
    assert "dtj: rank 0 failed: ValueError: label 11 is out of range" in ended.err
    told = json.loads(log.read_text())
    assert told["reason"] == "Exception"
    assert 'raise ValueError("label 11 is out of range")' in told["message"]
