"""Which checkpoints are kept, saves to a failing disk, and export and import of weights."""

import ctypes
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dtj.checkpoint import weights
from dtj.errors import RecipeError
from dtj.models.gpt import GPT
from tests.process.dtj.conftest import PROGRAMS, SHAPE, Finished, Start, wait_for
from tests.process.dtj.test_strategies import STEPS, by_hand, train
from tests.process.dtj.test_strategies import weights as weights_of
from tests.support import checkpoints
from tests.support.checkpoints import names

Finish = Callable[..., Finished]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def whole(finish_once: Finish, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one rank."""
    train(finish_once, out := tmp_path_factory.mktemp("whole") / "out")
    return out


@pytest.fixture(scope="module")
def sharded(finish_once: Finish, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two ranks with shards."""
    train(finish_once, out := tmp_path_factory.mktemp("sharded") / "out", "--nproc", 2, "--parallel", "fsdp")
    return out


@pytest.mark.parametrize("flags", [(), ("--nproc", 2, "--parallel", "fsdp")], ids=["whole", "sharded"])
def test_save_in_the_background_is_the_same_checkpoint(
    finish: Finish, tmp_path: Path, flags: tuple[object, ...]
) -> None:
    """Training continues meanwhile: a checkpoint that was not copied first would hold later weights."""
    train(finish, tmp_path / "out", *flags, "--async-save", "--save-every", 2, "--keep", 5)
    assert names(tmp_path / "out" / "run") == ["step-2", "step-4", "step-6"]
    for step in (2, 4, 6):
        _, expected = by_hand(step)
        found = weights_of(tmp_path / "out", step)
        torch.testing.assert_close(dict(found), dict(expected), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("fourth", "best"),
    [
        pytest.param(0.1, {"step": 1, "score": 0.5}, id="the previous best stays"),
        pytest.param(
            0.7, {"step": 4, "score": 0.7}, id="the next checkpoint with a higher score becomes best"
        ),
    ],
)
def test_best_checkpoint_could_not_be_written(
    finish: Finish, tmp_path: Path, fourth: float, best: dict[str, float]
) -> None:
    """Only rank 0 knows of the error."""
    run = tmp_path / "run"
    flags = ("run", "--nproc", 2, "--checkpoint", run, "--save-every", 100, PROGRAMS / "gpt.py")
    ended = finish(*flags, OUT=tmp_path, STEPS=7, SCORES=f"0.5,0.1,0.9,{fourth},0.1,0.1,0.1", UNWRITABLE=3)
    assert ended.code == 0, ended.err
    assert "step-3 could not be written: " in ended.err
    assert {name for name in names(run) if not name.endswith(".tmp")} == {f"step-{best['step']}", "step-7"}
    assert json.loads((run / "best.json").read_text()) == best


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder on a file system of the given size in kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, 0, f"size={request.param}k")
    yield folder
    ctypes.CDLL(None).umount2(str(folder).encode(), 2)


def mount(folder: Path, flags: int, options: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", str(folder).encode(), b"tmpfs", flags, options.encode()):
        pytest.skip(f"no right to mount a small file system: {os.strerror(ctypes.get_errno())}")


def become_read_only(disk: Path) -> None:
    """Remount read-only, as an administrator does, or the kernel after an error."""
    ms_rdonly, ms_remount = 1, 32
    mount(disk, ms_rdonly | ms_remount, "")


KINDS = [
    pytest.param((), id="whole"),
    pytest.param(("--async-save",), id="in the background"),
    pytest.param(("--nproc", 2, "--parallel", "fsdp"), id="sharded"),
]


@pytest.mark.parametrize(
    ("small_disk", "flags"),  # more than one checkpoint takes, less than two
    [pytest.param(kb, *kind.values, id=kind.id) for kb, kind in zip((200, 200, 780), KINDS, strict=True)],
    indirect=["small_disk"],
)
def test_training_continues_with_a_full_disk_and_the_last_checkpoint_stays(
    finish: Finish, tmp_path: Path, small_disk: Path, flags: tuple[object, ...]
) -> None:
    run = small_disk / "run"
    ended = finish(
        *("run", "--checkpoint", run, "--save-every", 2, *flags, "--max-restarts", 3, PROGRAMS / "gpt.py"),
        **{"OUT": tmp_path, "STEPS": 5, "changed": {"dtj.checkpoint.checkpointer._FULL_S": 0}},
    )
    assert "step-4 could not be written: " in ended.err
    assert_older_checkpoint_is_intact(ended, run, code=78)
    assert "generation 2" not in ended.err  # a restart would find the disk full, too


@pytest.mark.parametrize(
    ("small_disk", "flags"),
    [pytest.param(kb, *kind.values, id=kind.id) for kb, kind in zip((200, 200, 780), KINDS, strict=True)],
    indirect=["small_disk"],
)
@pytest.mark.parametrize("end", ["space", "stop"])
def test_last_save_waits_for_space_until_the_job_is_to_stop(
    start: Start, tmp_path: Path, small_disk: Path, flags: tuple[object, ...], end: str
) -> None:
    """Only memory holds the state."""
    job = start(
        *("run", "--checkpoint", small_disk / "run", "--save-every", 2, *flags, PROGRAMS / "gpt.py"),
        **{"OUT": tmp_path, "STEPS": 3, "changed": {"dtj.checkpoint.checkpointer._FULL_PAUSE_S": 0.02}},
    )
    wait_for(lambda: "step-3 could not be written: " in job.err, "a last save on a full disk")
    assert "No space left on device; tried again for 10 minutes" in job.err
    if end == "stop":
        job.signal(signal.SIGTERM)
    else:
        shutil.rmtree(small_disk / "run" / "step-2")
    ended = job.wait()
    assert ended.code == (1 if end == "stop" else 0), ended.err
    assert names(small_disk / "run") == ["step-2" if end == "stop" else "step-3"]


@pytest.mark.parametrize("small_disk", [20_000], indirect=True)
@pytest.mark.parametrize("flags", KINDS)
def test_training_continues_on_a_read_only_volume_and_the_last_checkpoint_stays(
    finish: Finish, tmp_path: Path, small_disk: Path, flags: tuple[object, ...]
) -> None:
    run = small_disk / "run"
    command = ("run", "--checkpoint", run, "--save-every", 2, *flags, PROGRAMS / "gpt.py")
    assert finish(*command, OUT=tmp_path, STEPS=2).code == 0
    become_read_only(small_disk)
    ended = finish(*command, OUT=tmp_path, STEPS=5)
    assert f"cannot write to {run}: Read-only file system; training continues" in ended.err
    assert f"resuming from {run / 'step-2'}" in ended.err
    assert "step-4 could not be written: Read-only file system" in ended.err
    assert_older_checkpoint_is_intact(ended, run)


def assert_older_checkpoint_is_intact(ended: Finished, run: Path, *, code: int = 1) -> None:
    """The checkpoint of step 2 of 5. Training continued to the end, but its last state is not on disk."""
    assert "training continues (newest checkpoint: of step 2)" in ended.err
    assert ended.code == code
    assert "step-5 could not be written" in ended.err
    # From 3.13 on Python prints what fails when a file is deleted that torch has not closed.
    ignored = ended.err.count("Exception ignored in: <torch.distributed.checkpoint")
    assert ended.err.count("Traceback") == (ignored if sys.version_info >= (3, 13) else 0)
    assert names(run) == ["step-2"]
    assert checkpoints.whole(run / "step-2")["step"] == 2


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_weights_of_a_sharded_run_are_exported_and_loaded_by_another(
    finish: Finish, sharded: Path, tmp_path: Path, suffix: str
) -> None:
    _, expected = by_hand(STEPS)
    file = tmp_path / f"weights{suffix}"
    ended = finish("export", sharded / "run", file)
    assert (ended.code, ended.out) == (0, f"{file}: {len(expected) - 1} tensors\n"), "tied weights once"
    if suffix == ".safetensors":
        expected = {name: tensor for name, tensor in expected.items() if name != "head.weight"}
    torch.testing.assert_close(dict(weights.read(file)), dict(expected), rtol=1e-4, atol=2e-5)

    first = train(finish, tmp_path / "next", "--nproc", 2, "--parallel", "tp", "--weights", file, steps=1)
    again = GPT(SHAPE)
    weights.load(again, CPU, path=file)
    assert first[0] < by_hand(1)[0][0], "the first run started with untrained weights"
    assert torch.equal(again.head.weight, again.token.weight)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_truncated_weights_are_refused(finish: Finish, whole: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"weights{suffix}"
    assert finish("export", whole / "run", file).code == 0
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(RecipeError, match=f"{file} is not a "):
        weights.read(file)
