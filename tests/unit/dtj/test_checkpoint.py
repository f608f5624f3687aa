"""A checkpoint is complete or absent, whenever the writer dies."""

import copy
import errno
import json
import math
import os
import pickle
import shutil
import threading
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from dtj.checkpoint import paths, placeholders, reader, save, sharded, storage
from dtj.checkpoint.checkpointer import Checkpointer
from dtj.checkpoint.objects import Location
from dtj.checkpoint.owner import Deputy, Owner
from dtj.checkpoint.parts import Parts, Snapshot
from dtj.checkpoint.writer import Writer
from dtj.errors import CheckpointError, RecipeError, SupersededError
from dtj.parallel.layout import Layout
from dtj.parallel.strategy import Strategy
from dtj.ranks.world import World
from dtj.settings import Settings
from tests.support import checkpoints
from tests.support.checkpoints import STATE, commit, found, names


@pytest.mark.parametrize(
    ("names", "committed", "removed"),
    [
        pytest.param(["step-1", "step-2"], 2, [], id="two are kept"),
        pytest.param(
            ["step-9", "step-10", "step-100"], 100, ["step-9"], id="steps are compared as numbers, not text"
        ),
        pytest.param(["step-01", "notes", "step-x", "stepping"], 9, [], id="other names stay"),
        pytest.param(
            ["step-15", "step-16", "step-19", "step-20"],
            16,
            [],
            id="later ones stay, and do not count as one of those that are kept",
        ),
    ],
)
def test_what_a_save_removes(names: list[str], committed: int, removed: list[str]) -> None:
    assert paths.to_remove(names, committed=committed) == removed


@pytest.mark.parametrize(("keep", "best", "removed"), [(3, 1, []), (2, 4, ["step-2", "step-1"])])
def test_best_checkpoint_stays_and_counts_as_one_of_the_newest_if_it_is(
    keep: int, best: int, removed: list[str]
) -> None:
    names = [f"step-{n}" for n in (1, 2, 3, 4)]
    assert paths.to_remove(names, committed=4, keep=keep, best=best) == removed


def test_save_keeps_as_many_as_asked_for_and_the_best(tmp_path: Path) -> None:
    run = tmp_path / "run"
    owner = Owner(run, {})
    commit(owner, 1)
    commit(owner, 2, score=0.5)
    commit(Owner(run, {}), 4, keep=1)
    assert names(run) == ["step-2", "step-4"]
    assert json.loads((run / paths.BEST_FILE).read_text()) == {"step": 2, "score": 0.5}


def test_best_checkpoint_is_noted_by_a_later_save_if_the_disk_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(tmp_path, {})
    commit(owner, 1, score=0.5)
    with monkeypatch.context() as full:
        full.setattr(owner.storage, "replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
        commit(owner, 2, score=0.9)
    owner.claim()  # as it does if its record was removed
    commit(owner, 3)
    assert json.loads((tmp_path / paths.BEST_FILE).read_text()) == {"step": 2, "score": 0.9}


def test_best_checkpoint_that_is_damaged_or_removed_counts_no_more(tmp_path: Path) -> None:
    owner = Owner(tmp_path, {})
    commit(owner, 1, score=0.5)
    commit(owner, 2, score=0.7)
    commit(owner, 3)
    again, _ = checkpointer(tmp_path, replicated=True)
    again._writer.owner.claim()  # type: ignore[union-attr]
    again.offer(0.6, group=None)
    assert not again.is_due(4)
    again._note_damaged(tmp_path / "step-2")
    again.offer(0.6, group=None)
    assert again.is_due(4)
    shutil.rmtree(tmp_path / "step-2")
    (tmp_path / paths.BEST_FILE).write_text('{"step": 2, "sc')
    for _ in range(2):
        another = Owner(tmp_path, {})
        another.claim()
        assert another.best is None
        (tmp_path / paths.BEST_FILE).write_text('{"step": 2, "score": 0.7}')


def test_checkpoint_that_could_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").touch()  # where the folder should be
    with pytest.raises(CheckpointError, match=r"run/step-7 could not be written: File exists") as raised:
        save.prepare(Owner(tmp_path / "run", {}), 7)
    assert "check that the volume is mounted" in str(raised.value.fix)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_full_disk_is_named_if_it_refuses_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 gets the error that another rank raises, but not the error that this one hides."""

    def torchs(*_: object) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 704 vs 598")

    monkeypatch.setattr(FileSystemWriter, "write_data", torchs)
    with pytest.raises(CheckpointError, match=r"step-7 could not be written: No space left on de") as raised:
        sharded.write(tmp_path / "step-7.tmp", 7, {"w": torch.zeros(1)}, group=None)
    assert "free space on this volume" in raised.value.fix
    assert isinstance(raised.value.__cause__, CheckpointException)
    assert isinstance(raised.value.__cause__.failures[0][0], OSError)


def test_save_does_not_fail_because_an_old_checkpoint_may_not_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is immutable, or belongs to another user."""
    remove = storage.Folder.remove

    def refuse_first(run: storage.Folder, name: str, *, writer: str) -> None:
        if name == "step-1":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        remove(run, name, writer=writer)

    monkeypatch.setattr(storage.Folder, "remove", refuse_first)
    commit(tmp_path, 1, 2, 3, 4)
    assert names(tmp_path) == ["step-1", "step-3", "step-4"]


def test_newest_two_stay_after_saves(tmp_path: Path) -> None:
    commit(tmp_path / "run", 5, 10, 15)
    assert names(tmp_path / "run") == ["step-10", "step-15"]
    assert found(tmp_path / "run") == ("step-15", [])


@pytest.mark.parametrize(
    "damage", ["empty", "cut", "flipped bit", "missing", "other content", "pickle of code"]
)
def test_damaged_checkpoint_is_skipped_with_a_warning(tmp_path: Path, damage: str) -> None:
    commit(tmp_path, 1, 2)
    file = tmp_path / "step-2" / paths.STATE_FILE
    data = file.read_bytes()
    middle = data.index(torch.arange(1000.0).numpy().tobytes()) + 1000
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    if damage == "missing":
        file.unlink()
    elif damage == "pickle of code":
        torch.save({"step": 2, "parts": Path("/")}, file)
    else:
        file.write_bytes(
            {"empty": b"", "cut": data[:-50], "flipped bit": flipped, "other content": b"hello" * 99}[damage]
        )
    name, warnings = found(tmp_path)
    assert name == "step-1"
    assert len(warnings) == 1
    assert str(tmp_path / "step-2") in warnings[0]
    with pytest.raises(RecipeError, match="step-2 is not a checkpoint: "):
        checkpoints.whole(tmp_path / "step-2")


def test_folder_that_cannot_be_read_raises_an_error(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(CheckpointError, match="loop cannot be read: Too many levels of symbolic links"):
        found(loop)


def test_checkpoint_that_cannot_be_read_is_not_treated_as_damaged(tmp_path: Path) -> None:
    """It may be intact: the run must not resume from an older one and delete this one later."""
    commit(tmp_path, 1, 2)
    file = tmp_path / "step-2" / paths.STATE_FILE
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(CheckpointError, match=r"step-2/state.pt cannot be read: Too many levels"):
        found(tmp_path)


@pytest.mark.parametrize(
    ("is_damaged", "left"), [(True, ["step-1", "step-2"]), (False, ["step-1", "step-2", "step-9"])]
)
def test_save_removes_later_checkpoints_only_if_they_are_damaged(
    tmp_path: Path, is_damaged: bool, left: list[str]
) -> None:
    commit(tmp_path, 1, 9)
    file = tmp_path / "step-9" / paths.STATE_FILE
    file.unlink()
    if not is_damaged:  # it cannot be read, and may be intact
        file.symlink_to(file)
    commit(tmp_path, 2)
    assert names(tmp_path) == left


def test_writer_that_is_replaced_just_after_its_commit_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_folder = storage.Folder.commit

    def commit_and_lose(run: storage.Folder, step: int, writer: str) -> Location:
        found = commit_folder(run, step, writer)
        if step == 3:
            Owner(tmp_path, {}).claim()
        return found

    monkeypatch.setattr(storage.Folder, "commit", commit_and_lose)
    owner = Owner(tmp_path, {})
    commit(owner, 1, 2)
    with pytest.raises(SupersededError):
        commit(owner, 3)
    assert names(tmp_path) == ["step-1", "step-2", "step-3"]


class Harmful:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_reading_metadata_of_shards_executes_no_code(tmp_path: Path) -> None:
    parts, tensors = sharded.extract_tensors(STATE["parts"])
    owner = Owner(tmp_path, {})
    sharded.write(save.prepare(owner, 2), 2, tensors, group=None)
    folder = save.commit(owner, 2, {"step": 2, "parts": parts})
    assert torch.equal(checkpoints.whole(folder)["parts"]["w"], STATE["parts"]["w"])

    (folder / paths.SHARDS / ".metadata").write_bytes(pickle.dumps(Harmful(tmp_path / "harm")))
    with pytest.raises(
        CheckpointError, match=f"its metadata refers to {Path.__module__}.Path.touch; only plain data"
    ):
        checkpoints.whole(folder)
    assert not (tmp_path / "harm").exists()


def test_step_saved_again_replaces_the_damaged_one(tmp_path: Path) -> None:
    commit(tmp_path, 1, 2)
    (tmp_path / "step-2" / paths.STATE_FILE).write_bytes(b"")
    commit(tmp_path, 2)
    assert found(tmp_path) == ("step-2", [])
    assert names(tmp_path) == ["step-1", "step-2"]


@pytest.mark.parametrize("other", ["commits", "removes"])
def test_step_that_two_ranks_save_at_the_same_time_is_committed_by_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Ranks that save for a lost rank 0: the folder changes just when it is about to be replaced."""
    agent = {"DTJ_INCARNATION": "a"}
    commit(Owner(tmp_path, agent), 1, 2)
    first, second = (Deputy(tmp_path, agent, rank=rank) for rank in (1, 2))
    for each in (first, second):
        save.prepare(each, 2)
    writing, rename = tmp_path / paths.pending_name_of(2, second.writer), Path.rename

    def interrupted(folder: Path, target: Path) -> Path:
        is_old = folder.name == "step-2"
        if is_old and other == "removes":
            shutil.rmtree(folder)
        moved = rename(folder, target)
        if is_old and other == "commits" and writing.exists():
            save.commit(second, 2, STATE, keep=9)
        return moved

    monkeypatch.setattr(Path, "rename", interrupted)
    save.commit(first, 2, STATE, keep=9)
    assert found(tmp_path) == ("step-2", [])


def test_step_saved_again_is_there_before_the_old_one_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting takes long, and a rank whose time to end is over is killed in it."""
    commit(tmp_path, 1, 2)
    delete, seen = shutil.rmtree, []

    def deleted(folder: Path, **how: Any) -> None:
        if folder.exists() and "-old." in folder.name:
            seen.append(found(tmp_path))
        delete(folder, **how)

    monkeypatch.setattr(shutil, "rmtree", deleted)
    commit(tmp_path, 2)
    assert seen == [("step-2", [])]


def test_own_checkpoint_wins_over_the_run_to_resume_from(tmp_path: Path) -> None:
    commit(tmp_path / "monday", 100)
    assert found(tmp_path / "own", tmp_path / "monday")[0] == "step-100"
    commit(tmp_path / "own", 3)
    assert found(tmp_path / "own", tmp_path / "monday")[0] == "step-3"


def test_run_that_is_resumed_from_may_still_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It removes both that were there while the first of them is read."""
    commit(tmp_path / "monday", 100, 110)
    read = reader.read

    def slow(folder: Location) -> Any:
        if folder.name == "step-110":
            commit(tmp_path / "monday", 120, 130)
        return read(folder)

    monkeypatch.setattr(reader, "read", slow)
    assert found(tmp_path / "own", tmp_path / "monday")[0] == "step-130"


def test_newest_of_several_runs_of_a_job_is_resumed(tmp_path: Path) -> None:
    """By time of commit, since steps of different runs cannot be compared."""
    commit(tmp_path / "monday" / "aaaa", 900)
    commit(tmp_path / "monday" / "bbbb", 20)
    os.utime(tmp_path / "monday" / "aaaa" / "step-900", (1e9, 1e9))
    (tmp_path / "monday" / "empty").mkdir()
    assert reader.newest_run(tmp_path / "monday") == tmp_path / "monday" / "bbbb"


@pytest.mark.parametrize(
    ("files", "why"),
    [
        pytest.param([], "there is no folder RUN", id="missing"),
        pytest.param([""], "RUN is empty", id="empty"),
        pytest.param(["0123abcd/owner.json"], "no run has saved one in RUN", id="never saved"),
        pytest.param(
            ["0123abcd/step-4.w.tmp/state.pt"],
            "no run has saved one in RUN; step-4.w.tmp is incomplete",
            id="incomplete",
        ),
        pytest.param(
            ["aa/step-4/state.pt", "aa/step-2/state.pt"],
            "all in RUN/aa are damaged (step-4, step-2); the log says how",
            id="damaged",
        ),
    ],
)
def test_run_that_cannot_be_resumed_says_why_and_how_to_start_without(
    tmp_path: Path, files: list[str], why: str
) -> None:
    run = tmp_path / "digits"
    for file in files:
        (run / file).parent.mkdir(parents=True, exist_ok=True)
        (run / file).write_bytes(b"") if file else run.mkdir()
    with pytest.raises(RecipeError) as raised:
        found(tmp_path / "own", run)
    assert raised.value.what.partition("resume from: ")[2] == why.replace("RUN", str(run))
    assert "to start from step 0 leave out --resume, or checkpoint.resumeFrom of the job" in raised.value.fix


def test_run_without_any_checkpoint_starts_from_scratch(tmp_path: Path) -> None:
    assert found(tmp_path / "never made") == (None, [])


@pytest.mark.parametrize(
    ("value", "where"),
    [
        pytest.param({"lr": np.float64(0.1)}, r"state\['lr'\] is a float64", id="a NumPy number"),
        pytest.param(
            {"a": [1, {"b": Path("/")}]},
            r"state\['a'\]\[1\]\['b'\] is a PosixPath",
            id="an object, deep inside",
        ),
        pytest.param(
            {"seen": defaultdict(int)}, r"state\['seen'\] is a defaultdict", id="a subclass of dict"
        ),
        pytest.param({np.int64(3): 5}, r"state's key .*3.* is a int64", id="a NumPy number as a key"),
        pytest.param({(1, frozenset()): 5}, r"key .*\[1\] is a frozenset", id="deep inside a key"),
    ],
)
def test_state_that_could_not_be_loaded_is_refused(value: Any, where: str) -> None:
    with pytest.raises(RecipeError, match=where):
        save.check_loadable(value, "state")


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"a": [1, (2.5, None, {3, "b"})], 7: b"c", (1, 2): True, "none": b""}, id="plain"),
        pytest.param(OrderedDict(a=torch.float32), id="an ordered dict"),
        pytest.param(Counter([10, 10, 20]), id="a Counter, as in a MultiStepLR"),
    ],
)
def test_state_that_is_accepted_can_be_loaded(tmp_path: Path, value: Any) -> None:
    save.check_loadable(value, "state")
    assert checkpoints.whole(commit(tmp_path, 1, state={"parts": value}))["parts"] == value


class Remembering(nn.Linear):
    """A layer that saves more than tensors."""

    def get_extra_state(self) -> Any:
        return lambda: self


def test_numbers_of_numpy_are_saved_as_pythons(tmp_path: Path) -> None:
    """The usual cosine schedule makes the learning rate one, and so does a score of scikit-learn."""
    parts = Parts(Strategy(Layout(strategy="none", sizes={}, rank=0), torch.device("cpu")))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, np.cos)
    optimizer.step()
    schedule.step()
    parts.register({"optimizer": optimizer, "schedule": schedule})
    found = checkpoints.whole(commit(tmp_path, 1, state=parts.state(1)))["parts"]
    (group,) = found["optimizer"]["param_groups"]
    assert group["lr"] == found["schedule"]["_last_lr"][0] == pytest.approx(0.2 * np.cos(1))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        pytest.param(
            Remembering(2, 2), r"state model\['_extra_state'\] is a function", id="a model with a lambda"
        ),
        pytest.param([1.0], "run.state got model, a list without state_dict", id="no state_dict"),
    ],
)
def test_part_that_cannot_be_saved_is_refused_before_training(part: Any, message: str) -> None:
    parts = Parts(Strategy(Layout(strategy="none", sizes={}, rank=0), torch.device("cpu")))
    with pytest.raises(RecipeError, match=message):
        parts.register({"model": part})


def test_any_error_of_the_thread_that_writes_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(owner=Owner(tmp_path, {}), keep=2, is_rank0=True, is_replicated=True, clock=lambda: 0.0)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("gloo: connection closed by peer")

    monkeypatch.setattr(save, "prepare", broken)
    writer.start(Snapshot(step=7, tree={}, shards={}), score=0.0, began=0.0, group=None)
    writer.wait()
    assert "step-7 could not be written: gloo: connection closed" in str(writer.failure)
    assert writer.score == -math.inf


def test_save_in_the_background_uses_the_memory_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that is new to the process takes several times as long to write."""
    writer = Writer(owner=Owner(tmp_path, {}), keep=2, is_rank0=True, is_replicated=True, clock=lambda: 0.0)
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(save, "commit", lambda _owner, _step, tree, **_: written.append(tree))
    weights = torch.zeros(4)
    for step, other in enumerate((torch.zeros(2), torch.zeros(3), torch.zeros(3, dtype=torch.int))):
        weights += 1
        tree = {"model": {"w": weights}, "groups": [{"other": other}]}
        writer.start(Snapshot(step=step, tree=tree, shards={}), score=0.0, began=0.0, group=None)
        writer.wait()
        weights += 10  # the next step
        assert written[-1]["model"]["w"].tolist() == [1 + 11 * step] * 4
        assert written[-1]["groups"][0]["other"].dtype == other.dtype
        assert written[-1]["groups"][0]["other"].shape == other.shape
    assert len({each["model"]["w"].data_ptr() for each in written}) == 1


def test_save_in_the_background_keeps_tied_weights_tied() -> None:
    """torch.save then writes them once. They may be tied in one save and not in the next."""
    first, second = torch.zeros(3), torch.ones(3)
    copied: Snapshot | None = None
    for tree in ({"a": first, "b": first.detach()}, {"a": first, "b": second}, {"a": second, "b": second}):
        copied = Snapshot(step=1, tree=tree, shards={}).copied(copied)
        torch.testing.assert_close(copied.tree, tree, rtol=0, atol=0)
        assert (copied.tree["a"] is copied.tree["b"]) == (tree["a"].data_ptr() == tree["b"].data_ptr())


def test_state_on_a_gpu_is_copied_to_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch is asked for; no GPU is needed."""
    asked: list[dict[str, Any]] = []

    class OnGpu(torch.Tensor):
        device = torch.device("cuda", 0)

    def memory(_tensor: torch.Tensor, **how: Any) -> torch.Tensor:
        asked.append(how)
        return torch.zeros(2)

    monkeypatch.setattr(torch, "empty_like", memory)
    weight = torch.ones(2).as_subclass(OnGpu)
    copied = Snapshot(step=1, tree={"weight": weight}, shards={}).copied()
    assert copied.tree["weight"].tolist() == [1, 1]
    assert [(how["device"], how["pin_memory"]) for how in asked] == [("cpu", True)]


def checkpointer(
    run: Location, say: Any = print, *, rank: int = 0, replicated: bool = False, **flags: Any
) -> tuple[Checkpointer, nn.Module]:
    """One process whose state is written as shards, unless it is replicated, and its model."""
    strategy = Strategy(Layout(strategy="none", sizes={}, rank=0), torch.device("cpu"))
    strategy.replicated = replicated
    settings = Settings(checkpoint_dir=str(run), **flags)
    world = World(rank=rank, size=2)
    found = Checkpointer(settings=settings, world=world, strategy=strategy, clock=lambda: 0.0, say=say)
    model = nn.Linear(1000, 1)
    found.parts.register({"model": model})
    return found, model


def test_rank_that_acts_for_rank_0_saves_a_step_that_rank_0_did_not_commit(tmp_path: Path) -> None:
    """Rank 0 was lost while it wrote the checkpoint of this step, which the other ranks took for saved."""
    rank_1, _ = checkpointer(tmp_path, rank=1, replicated=True)
    rank_1.save(7, group=None)
    assert names(tmp_path) == []
    rank_1.act_for_rank_0()
    rank_1.save(7, group=None, last=True)
    assert names(tmp_path) == ["step-7"]


@pytest.mark.parametrize(
    ("has_committed", "kept"),
    [
        pytest.param(False, ["step-3", "step-9"], id="not committed: the best before it stays"),
        pytest.param(True, ["step-7", "step-9"], id="committed: it is the best"),
    ],
)
def test_best_checkpoint_of_a_rank_0_that_was_lost_during_its_save(
    tmp_path: Path, has_committed: bool, kept: list[str]
) -> None:
    ranks = [checkpointer(tmp_path, rank=rank, replicated=True)[0] for rank in range(2)]
    for step, score in ((3, 0.5), (7, 0.9)):
        for each in ranks:
            each.offer(score, group=None)
        for each in ranks if step == 3 or has_committed else ranks[1:]:
            each.save(step, group=None)
    next_rank_0, _ = checkpointer(tmp_path, replicated=True)
    next_rank_0.load_whole_state(ranks[1].whole_state(7))
    next_rank_0.claim()
    next_rank_0.save(8, group=None)
    next_rank_0.save(9, group=None)
    assert set(names(tmp_path)) == {*kept, "step-8"}


def test_next_rank_0_knows_and_reports_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes over the state of another rank, and reads no checkpoint."""
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr("dtj.checkpoint.writer.report_pipe.send", reports.append)
    lost, survivor, following = (checkpointer(tmp_path, rank=r, replicated=True)[0] for r in (0, 1, 0))
    for step in (3, 7):
        lost.save(step, group=None)
    commit(tmp_path, 20)  # of a run before
    reports.clear()
    following.load_whole_state(survivor.whole_state(8))
    assert following.saved_step == 7
    assert reports == [{"checkpoint": {"step": 7, "path": str(tmp_path / "step-7")}}]

    reports.clear()
    shutil.rmtree(tmp_path / "step-20")
    following.load_rank_state(following.rank_state(), saved=7)
    assert reports == [{"checkpoint": {"step": 7, "path": str(tmp_path / "step-7")}}]


def test_volume_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    is_said = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        is_said.set()

    def claim(_owner: Owner) -> None:
        assert is_said.wait(60), "nothing was said while the volume did not answer"

    monkeypatch.setattr("dtj.checkpoint.answers.SILENT_S", 0.01)
    monkeypatch.setattr(Owner, "claim", claim)
    checkpointer(tmp_path, say)[0].claim()
    assert said == [f"{tmp_path} has not answered for 0 s: every rank waits for it"]


def flip_a_bit(file: Path, after: bytes) -> None:
    data = bytearray(file.read_bytes())
    data[data.index(after) + 100] ^= 1
    file.write_bytes(data)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("damage", ["flipped bit", "cut", "metadata"])
def test_damaged_shard_falls_back_to_the_checkpoint_before_it(tmp_path: Path, damage: str) -> None:
    writer, model = checkpointer(tmp_path)
    before = copy.deepcopy(model.state_dict())
    writer.save(1, group=None)
    torch.nn.init.ones_(next(model.parameters()))
    writer.save(5, group=None)
    shards = tmp_path / "step-5" / paths.SHARDS
    (file,) = shards.glob("*.distcp")
    if damage == "metadata":
        (shards / ".metadata").write_bytes(b"hello")
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:2000])
    else:
        flip_a_bit(file, torch.ones(1000).numpy().tobytes())

    said: list[str] = []
    reader_, restored = checkpointer(tmp_path, said.append)
    assert reader_.restore(None) == 1
    torch.testing.assert_close(restored.state_dict(), before)
    assert any("step-5 is unreadable and was skipped: " in line for line in said)
    reader_.save(3, group=None)
    assert names(tmp_path) == ["step-1", "step-3"]
    reader_.save(5, group=None)
    assert names(tmp_path) == ["step-3", "step-5"]
    assert reader_.newest_saved() == 5


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_shards_that_cannot_be_read_are_not_treated_as_damaged(tmp_path: Path) -> None:
    writer, _ = checkpointer(tmp_path)
    writer.save(1, group=None)
    writer.save(2, group=None)
    (file,) = (tmp_path / "step-2" / paths.SHARDS).glob("*.distcp")
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(CheckpointError, match=r"shards cannot be read: .*Too many levels"):
        checkpointer(tmp_path)[0].restore(None)


@pytest.mark.parametrize("function", ["ZipFile", "_EndRecData"])
def test_input_output_error_is_not_treated_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """A network volume has such errors for a moment, too."""
    commit(tmp_path, 1, 2)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(f"zipfile.{function}", broken)
    with pytest.raises(
        CheckpointError, match=r"step-2/state.pt cannot be read: Input/output error"
    ) as raised:
        found(tmp_path)
    assert "remove it to resume from the checkpoint before it" in raised.value.fix


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda model: torch.optim.SGD(model.parameters(), momentum=0.9),
            "opt does not fit the checkpoint of step 3: it is that of another kind of optimizer",
            id="another kind",
        ),
        pytest.param(
            lambda model: torch.optim.Adam([model.weight]),
            "opt does not fit the checkpoint of step 3: .*doesn't match the size",
            id="fewer parameters",
        ),
    ],
)
@pytest.mark.parametrize("is_sharded", [False, True])
def test_state_of_another_optimizer_is_refused(change: Any, message: str, is_sharded: bool) -> None:
    model = nn.Linear(2, 2)
    opt = torch.optim.Adam(model.parameters())
    model(torch.ones(2)).sum().backward()
    opt.step()
    strategy = Strategy(Layout(strategy="none", sizes={}, rank=0), torch.device("cpu"))
    state = {"step": 3, "parts": {"opt": opt.state_dict()}}
    strategy.replicated = not is_sharded
    parts = Parts(strategy)
    parts.register({"opt": change(model)})
    with pytest.raises(RecipeError, match=message):
        parts.load(state, None)


def test_optimizer_of_layers_in_another_order_is_refused() -> None:
    """Its state has only numbers: each parameter would get the state of another one of the same shape."""

    def parts_of(*layers: str) -> Parts:
        model = nn.ModuleDict({name: nn.Linear(2, 2) for name in layers})
        parts = Parts(Strategy(Layout(strategy="none", sizes={}, rank=0), torch.device("cpu")))
        parts.register({"net": model, "opt": torch.optim.Adam(model.parameters())})
        return parts

    saved = parts_of("query", "key").state(3)
    parts_of("query", "key").load(saved, None)
    with pytest.raises(RecipeError) as raised:
        parts_of("key", "query").load(saved, None)
    assert raised.value.what == (
        "opt does not fit the checkpoint of step 3: its parameter 0 is net.key.weight, "
        "in the checkpoint net.query.weight"
    )


def test_two_tensors_with_one_path_are_refused() -> None:
    """Keys are written as text: of these, one would have been loaded in the place of the other."""
    with pytest.raises(RecipeError, match="two tensors at ema/1"):
        sharded.extract_tensors({"ema": {1: torch.ones(1), "1": torch.zeros(1)}})


def test_tensors_in_lists_are_sharded_as_those_in_dicts() -> None:
    """As of a moving average that a program keeps in a list: rank 0 has only its own shards of it."""
    here, there = torch.ones(2), torch.empty(2, device="meta")
    trees, found = zip(
        *(
            sharded.extract_tensors({"ema": {"of": [tensors, (1, 2)]}})
            for tensors in ((here, there), (there, here))
        ),
        strict=True,
    )
    assert [list(each) for each in found] == [["ema/of/0/0"], ["ema/of/0/1"]]
    tree = placeholders.merge(list(trees))
    assert placeholders.paths_in(tree) == ["ema/of/0/0", "ema/of/0/1"]
    again = sharded._replace(tree, found[0] | found[1], sharded.WHOLE)
    assert again["ema"]["of"][1] == (1, 2)
    assert [each.tolist() for each in again["ema"]["of"][0]] == [[1, 1], [1, 1]]
