"""Two processes write to one folder: the process that started first changes nothing any more."""

import errno
import json
import stat
import sys
from pathlib import Path

import pytest
import torch

from dtj.checkpoint import paths, save
from dtj.checkpoint.owner import Deputy, Owner
from dtj.errors import SupersededError
from tests.support.checkpoints import STATE, commit, names


def owner(run: Path, writer: str, **env: str) -> Owner:
    """The owner of a rank whose agent has this id; it has not claimed the folder yet."""
    return Owner(run, {"DTJ_INCARNATION": writer, **env})


def pending(run: Path, step: int, writer: str) -> Path:
    """An unfinished checkpoint, in which that writer may be writing now."""
    folder = run / paths.pending_name_of(step, writer)
    folder.mkdir(parents=True)
    return folder


def test_record_says_who_writes(tmp_path: Path) -> None:
    owner(tmp_path, "a1", DTJ_JOB="digits", DTJ_GENERATION="3").claim()
    record = json.loads((tmp_path / paths.OWNER_FILE).read_text())
    assert {name: record[name] for name in ("writer", "job", "generation", "superseded")} == {
        "writer": "a1",
        "job": "digits",
        "generation": 3,
        "superseded": [],
    }


@pytest.mark.parametrize("mode", [0o1777, 0o2775, 0o755])
def test_who_may_write_to_the_volume_may_write_beside_the_folder_of_a_job(tmp_path: Path, mode: int) -> None:
    """A job of another user in the same namespace, or a later one with the same name."""
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(mode)
    run = volume / "default" / "digits" / "1a2b3c4d"
    owner(run, "a1", DTJ_JOB="digits").claim()
    shared = [run.parent, run.parent.parent]
    assert [stat.S_IMODE(each.stat().st_mode) for each in shared] == [mode, mode]
    assert not run.stat().st_mode & stat.S_IWOTH


def test_folders_above_a_run_without_a_job_belong_to_its_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    owner(tmp_path / "runs" / "first", "a1").claim()
    assert not (tmp_path / "runs").stat().st_mode & stat.S_IWOTH


@pytest.mark.parametrize("older_step", [120, 500, 900])
def test_writer_that_started_earlier_ends_and_changes_nothing(tmp_path: Path, older_step: int) -> None:
    older, newer = owner(tmp_path, "old"), owner(tmp_path, "new")
    commit(older, 80, 100)
    commit(newer, 500, 520)
    writing = pending(tmp_path, 540, "new")
    before = names(tmp_path)
    with pytest.raises(
        SupersededError, match=r"belongs to a process that started later \(host .*\): this run"
    ):
        commit(older, older_step)
    assert names(tmp_path) == before
    assert writing.exists()
    commit(newer, 560)
    assert names(tmp_path) == ["step-520", "step-560"]


def test_writer_that_is_superseded_while_it_writes_does_not_commit(tmp_path: Path) -> None:
    older = owner(tmp_path, "old")
    commit(older, 80)
    save.prepare(older, 100)
    owner(tmp_path, "new").claim()
    with pytest.raises(SupersededError):
        save.commit(older, 100, STATE)
    assert names(tmp_path) == ["step-80"]


def test_superseded_agent_cannot_claim_again_with_a_new_rank(tmp_path: Path) -> None:
    """An old pod on a lost node may fork its ranks again later than its replacement has started."""
    for writer in ("first", "second", "third"):
        owner(tmp_path, writer).claim()
    for writer in ("first", "second"):
        with pytest.raises(SupersededError):
            owner(tmp_path, writer).claim()
    owner(tmp_path, "third").claim()


def test_rank_that_its_agent_has_restarted_is_the_same_writer(tmp_path: Path) -> None:
    commit(owner(tmp_path, "a1"), 10)
    pending(tmp_path, 20, "a1")  # its rank was killed in the middle of a save
    commit(owner(tmp_path, "a1"), 30)
    assert names(tmp_path) == ["step-10", "step-30"]


def test_leftovers_are_removed_unless_a_later_writer_may_write_there(tmp_path: Path) -> None:
    pending(tmp_path, 90, "dead")
    first = owner(tmp_path, "a1")
    first.claim()
    writing = pending(tmp_path, 120, "later")  # that writer has not replaced the record yet
    commit(first, 100)
    assert names(tmp_path) == ["step-100", writing.name]


def test_leftovers_are_removed_before_a_save_which_needs_their_space(tmp_path: Path) -> None:
    """If they were removed after it only, a volume that they fill would stay full."""
    pending(tmp_path, 90, "dead")
    first = owner(tmp_path, "a1")
    writing = save.prepare(first, 100)
    assert names(tmp_path) == [writing.name]


def test_part_of_a_record_that_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{paths.OWNER_FILE}.dead").write_text("{")
    commit(owner(tmp_path, "a1"), 100)
    assert sorted(each.name for each in tmp_path.iterdir()) == [paths.OWNER_FILE, "step-100"]


def test_readable_checkpoint_of_a_later_step_stays(tmp_path: Path) -> None:
    commit(tmp_path, 500, 520)
    commit(tmp_path, 110, 120, 130)
    assert names(tmp_path) == ["step-120", "step-130", "step-500", "step-520"]


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_unreadable_checkpoint_of_a_later_step_is_removed(tmp_path: Path, damage: str) -> None:
    """It would soon count as one of those that are kept."""
    commit(tmp_path, 500, 520)
    file = tmp_path / "step-520" / paths.STATE_FILE
    file.unlink() if damage == "missing" else file.write_bytes(file.read_bytes()[:-50])
    commit(tmp_path, 510)
    assert names(tmp_path) == ["step-500", "step-510"]


def test_later_checkpoint_that_cannot_be_read_now_stays(tmp_path: Path) -> None:
    commit(tmp_path, 500, 520)
    file = tmp_path / "step-520" / paths.STATE_FILE
    file.unlink()
    file.symlink_to(file)  # reading it fails with an error that may be temporary
    commit(tmp_path, 510)
    assert names(tmp_path) == ["step-500", "step-510", "step-520"]


def test_damaged_or_removed_record_is_written_again(tmp_path: Path) -> None:
    writer = owner(tmp_path, "a1")
    for content in ("", "[1]", None):
        commit(writer, 10)
        (tmp_path / paths.OWNER_FILE).unlink()
        if content is not None:
            (tmp_path / paths.OWNER_FILE).write_text(content)
        commit(writer, 20)
        assert json.loads((tmp_path / paths.OWNER_FILE).read_text())["writer"] == "a1"


def test_full_disk_leaves_no_part_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pod that replaces another one would leave such a file."""

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        owner(tmp_path, "a1").claim()
    assert list(tmp_path.iterdir()) == []


def test_disk_error_of_a_superseded_writer_is_not_reported_as_one(tmp_path: Path) -> None:
    """The next owner removes the folder in which the older one was writing."""
    older, newer = owner(tmp_path, "old"), owner(tmp_path, "new")
    save.prepare(older, 100)
    newer.claim()
    commit(newer, 200)
    assert names(tmp_path) == ["step-200"]
    with pytest.raises(SupersededError):
        save.commit(older, 100, {"step": 100, "parts": {"w": torch.zeros(2)}})


@pytest.mark.parametrize(
    ("writer", "job", "may_save"),
    [
        pytest.param("of replica 1", "digits", True, id="another pod of the job"),
        pytest.param("a1", "", True, id="the agent of rank 0"),
        pytest.param("of replica 1", "", False, id="no job: it may be another run"),
        pytest.param("of replica 1", "letters", False, id="another job"),
    ],
)
def test_rank_that_saves_for_rank_0_leaves_the_folder_to_it(
    tmp_path: Path, writer: str, job: str, may_save: bool
) -> None:
    of_rank_0 = owner(tmp_path, "a1", DTJ_JOB="digits")
    commit(of_rank_0, 80, 100)
    before = (tmp_path / paths.OWNER_FILE).read_text()
    deputy = Deputy(tmp_path, {"DTJ_INCARNATION": writer, "DTJ_JOB": job}, rank=1)
    if may_save:
        commit(deputy, 120, keep=sys.maxsize)
    else:
        with pytest.raises(SupersededError):
            commit(deputy, 120)
    assert (tmp_path / paths.OWNER_FILE).read_text() == before
    assert names(tmp_path) == ["step-100", *["step-120"][:may_save], "step-80"]
    commit(of_rank_0, 140)
