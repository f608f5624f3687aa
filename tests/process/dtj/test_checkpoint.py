"""A checkpoint is complete or absent, whenever the writer dies."""

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch

from dtj.checkpoint import paths
from tests.process.dtj.conftest import PROGRAMS, Finished, Start, wait_for
from tests.process.dtj.programs import saves
from tests.support import checkpoints
from tests.support.checkpoints import commit, found, names

GPT = PROGRAMS / "gpt.py"
STATE: dict[str, Any] = {"step": 1, "parts": {"w": torch.arange(1000.0)}}


@pytest.fixture
def quick_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, if available: a killed process leaves the same files, and fsync costs nothing."""
    parent = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=parent if os.access(parent, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


def test_what_was_committed_survives_60_kills(warm: ForkServerContext, quick_disk: Path) -> None:
    """A process that saves as fast as it can is killed after a random time, 20 times with each size."""
    run, chance = quick_disk / "run", random.Random(4)
    claimed: Any = warm.RawValue("q", 0)  # the newest step whose commit has returned
    unfinished = unclaimed = 0  # kills before a rename, and between a rename and the claim
    commit(run, 0)
    for number in range(60):
        floats, longest_s = ((1_000, 0.01), (30_000, 0.01), (1_000_000, 0.04))[number % 3]
        before = claimed.value
        writer = warm.Process(target=saves.for_ever, args=(run, before + 1, floats, claimed))
        writer.start()
        wait_for(lambda: claimed.value > before, "the first commit")  # noqa: B023 - called immediately
        time.sleep(chance.uniform(0, longest_s))  # the random moment of the kill, not a wait for something
        writer.kill()
        writer.join()
        unfinished += bool(paths.unfinished(names(run)))
        name, warnings = found(run)
        assert (name, warnings) in [(paths.name_of(claimed.value + n), []) for n in (0, 1)]
        unclaimed += name != paths.name_of(claimed.value)
        state = checkpoints.whole(run / str(name))
        assert torch.equal(state["parts"]["w"], torch.full((floats,), float(state["step"])))
        claimed.value = state["step"]
    assert unfinished > 0
    assert unclaimed > 0


def test_sharded_run_that_is_killed_while_it_saves_loses_at_most_one_step(
    start: Start, quick_disk: Path, tmp_path: Path
) -> None:
    """All processes are killed together, as in a power failure; each run resumes from what is on disk."""
    run, chance, last = quick_disk / "run", random.Random(5), 0
    flags = ("--nproc", 2, "--parallel", "fsdp", "--checkpoint", run, "--save-every", 1)
    for _ in range(5):
        job = start("run", *flags, GPT, OUT=tmp_path, STEPS=10**6)
        wait_for(lambda: newest(run) > last + 2, "some saves")  # noqa: B023 - called immediately
        time.sleep(chance.uniform(0, 0.1))
        done = int((tmp_path / "step").read_text())
        job.kill()
        last = newest(run)
        assert last >= done - 1
        assert checkpoints.whole(run / paths.name_of(last))["step"] == last
        assert "unreadable" not in job.err


def newest(run: Path) -> int:
    """Step of the newest committed checkpoint, 0 if there is none."""
    names = paths.newest_first(child.name for child in run.iterdir()) if run.exists() else []
    return paths.step_of(names[0]) or 0 if names else 0


# Its save in the background begins to write when the program leaves its loop.
LEAVES = """
import os, sys, threading
import torch
import dtj
from dtj.checkpoint import save

write = torch.save

def slow(*args):
    if threading.current_thread() is threading.main_thread():
        return write(*args)
    leaves.wait()
    if os.environ["HOW"] == "failure":
        threading.Event().wait()  # it would never end
    if os.environ["HOW"] == "full":
        raise OSError(28, "No space left on device")
    write(*args)

save.torch.save = slow
leaves = threading.Event()
run = dtj.init()
model = run.parallel(torch.nn.Linear(2, 1))
run.state(model=model)
for _ in run.steps(9):
    if run.step == 3:
        leaves.set()
        if os.environ["HOW"] == "exit":
            sys.exit()
        if os.environ["HOW"] == "failure":
            raise ValueError("a bug")
        break
    run.backward(model(torch.ones(1, 2)).mean())
"""


@pytest.mark.parametrize("how", ["break", "exit", "full", "failure"])
def test_save_in_the_background_is_completed_before_the_process_ends(
    finish: Callable[..., Finished], tmp_path: Path, how: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(LEAVES)
    flags = ("--checkpoint", tmp_path / "saved", "--save-every", 3, "--async-save")
    ended = finish("run", "--nproc", 1, "--max-restarts", 0, *flags, script, HOW=how)
    assert ended.code == (1 if how == "failure" else 0), ended.err
    assert (tmp_path / "saved" / "step-3").exists() == (how in {"break", "exit"})
    assert ("step-3 could not be written: No space left on device" in ended.err) == (how == "full")
