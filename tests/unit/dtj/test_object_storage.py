"""Checkpoints in an object store: complete or absent, whichever request was the last one."""

import copy
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from dtj.checkpoint import export, objects, paths, reader, save, storage, weights
from dtj.checkpoint.checkpointer import Checkpointer
from dtj.checkpoint.objects import ObjectPath, locate
from dtj.checkpoint.owner import Owner
from dtj.errors import CheckpointError, RecipeError, SupersededError
from tests.support.checkpoints import STATE, commit, found
from tests.unit.dtj.test_checkpoint import checkpointer

RUN = ObjectPath("memory://bucket/run")


@pytest.fixture(autouse=True)
def _empty_store() -> Iterator[None]:
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def owner(writer: str) -> Owner:
    return Owner(RUN, {"DTJ_INCARNATION": writer})


def names() -> list[str]:
    """What the store says is in the run, except for the record of its owner."""
    return sorted(name for name in owner("any").storage.names() if name not in paths.RECORDS)


def keys() -> list[str]:
    """Every object of the run."""
    return sorted(fsspec.filesystem("memory").find("/bucket/run"))


def test_newest_are_kept_and_the_best_and_nothing_else() -> None:
    writer = owner("a1")
    commit(writer, 1)
    commit(writer, 2, score=0.5)
    commit(writer, 3, 12, 13)
    assert names() == ["step-12", "step-13", "step-2"]
    assert len(keys()) == 2 + 3 * 2  # two records, and for each checkpoint a marker and a state
    assert found(RUN) == ("step-13", [])


def test_run_to_resume_from_is_the_one_that_committed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    job = RUN / "job"
    for run, at, step in (("aaaa", 200.0, 20), ("bbbb", 100.0, 900)):
        monkeypatch.setattr("time.time", lambda at=at: at)
        commit(Owner(job / run, {}), step)
    assert reader.newest_run(job) == job / "aaaa"
    assert found(RUN / "own", job) == ("step-20", [])


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the writer's own code runs after it that would change the store."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_previous_or_new_checkpoint_is_found_whichever_request_is_the_last(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The writer is killed before or after each of the requests of a save that change something."""
    number = 0
    last = 1  # the request at which the writer is killed

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def request(*args: Any, **how: Any) -> Any:
            nonlocal number
            number += 1
            if when == "before" and number >= last:
                raise Killed
            answer = method(*args, **how)
            if when == "after" and number >= last:
                raise Killed
            return answer

        return request

    seen = set()
    while True:
        MemoryFileSystem.store.clear()
        commit(owner("a1"), 1, 2)
        number = 0
        with monkeypatch.context() as patch:
            for name in ("write_bytes", "remove"):
                patch.setattr(ObjectPath, name, counted(getattr(ObjectPath, name)))
            patch.setattr(objects._Upload, "close", counted(objects._Upload.close))
            try:
                commit(owner("a1"), 3)
                break  # it was not killed
            except Killed:
                last += 1
        newest, warnings = found(RUN)
        assert (newest in {"step-2", "step-3"}, warnings) == (True, [])
        seen.add(newest)
        commit(owner("b2"), 4, 5)
        assert names() == ["step-4", "step-5"]
        assert len(keys()) == 1 + 2 * 2, "what the killed writer left was not removed"
    assert last > 4
    assert seen == {"step-2", "step-3"}


def test_writer_that_was_replaced_does_not_change_a_checkpoint_of_the_same_step() -> None:
    older, newer = owner("old"), owner("new")
    save.prepare(older, 5)
    commit(newer, 5)
    with pytest.raises(SupersededError):
        save.commit(older, 5, {"step": 5, "parts": {"w": torch.zeros(3)}})
    assert torch.equal(reader.read(RUN / "step-5")["parts"]["w"], STATE["parts"]["w"])
    assert names() == ["step-5"]


@pytest.mark.parametrize("check", [2, 3])
def test_checkpoint_that_a_writer_commits_while_it_is_replaced_stays_whole(
    monkeypatch: pytest.MonkeyPatch, check: int
) -> None:
    """The newer one claims the run just after the older one has checked it: before its marker, or after."""
    older, newer = owner("old"), owner("new")
    commit(older, 1, 2)
    checks, checked = iter(range(1, 5)), older.check

    def replaced() -> None:
        number = next(checks)
        if number == check == 3:
            newer.claim()
        checked()
        if number == check == 2:
            newer.claim()

    monkeypatch.setattr(older, "check", replaced)
    with pytest.raises(SupersededError):
        commit(older, 3)
    assert found(RUN) == ("step-3", [])
    save.prepare(newer, 4)
    assert found(RUN) == ("step-3", [])


@pytest.mark.parametrize("damage", ["state", "no state", "marker", "marker elsewhere"])
def test_damaged_checkpoint_is_skipped_and_then_replaced(damage: str) -> None:
    commit(owner("a1"), 1, 2)
    state = storage.content(RUN / "step-2") / paths.STATE_FILE
    assert isinstance(state, ObjectPath)
    match damage:
        case "state":
            state.write_bytes(state.read_bytes()[:-50])
        case "no state":
            state.remove()
        case "marker":
            (RUN / "step-2").write_bytes(b"")
        case _:
            (RUN / "step-2").write_bytes(json.dumps({"content": "../step-1", "at": 0}).encode())
    name, (warning,) = found(RUN)
    assert name == "step-1"
    assert warning.startswith("checkpoint memory://bucket/run/step-2 is unreadable and was skipped")
    commit(owner("a1"), 2)
    assert found(RUN) == ("step-2", [])


@pytest.mark.parametrize("method", ["ls", "cat_file", "size"])
def test_error_of_the_store_is_not_treated_as_damage(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    commit(owner("a1"), 1, 2)

    def unavailable(*_: object, **__: object) -> None:
        raise RuntimeError("503: reduce your request rate")

    monkeypatch.setattr(MemoryFileSystem, method, unavailable)
    with pytest.raises(CheckpointError, match="cannot be read: 503: reduce your request rate") as raised:
        found(RUN)
    assert "check that the store answers" in raised.value.fix


def test_store_that_fails_while_a_state_is_read_does_not_make_it_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any of the requests for its ranges can fail, also those of torch.load."""
    commit(owner("a1"), 1)
    cat_file, first_to_fail, count = MemoryFileSystem.cat_file, 0, 0

    def failing(*args: object, **how: object) -> Any:
        nonlocal count
        count += 1
        if count > first_to_fail:
            raise RuntimeError("503: reduce your request rate")
        return cat_file(*args, **how)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", failing)
    with pytest.raises(CheckpointError, match="503"):
        found(RUN)
    while count > first_to_fail:
        first_to_fail, count = first_to_fail + 1, 0
        try:
            assert found(RUN) == ("step-1", [])
        except CheckpointError as error:
            assert "503" in error.what  # noqa: PT017 - the last one succeeds
    assert first_to_fail > 5


def test_failed_save_leaves_no_objects_and_the_next_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = owner("a1")
    commit(writer, 1)
    before = keys()

    def refused(*_: object) -> None:
        raise RuntimeError("AccessDenied")

    save.prepare(writer, 2)
    with monkeypatch.context() as patch:
        patch.setattr(objects._Upload, "write", refused)
        with pytest.raises(CheckpointError, match="run/step-2 could not be written: ") as raised:
            save.commit(writer, 2, STATE)
    assert "credentials to write" in raised.value.fix
    assert keys() == before
    commit(writer, 3)
    assert found(RUN) == ("step-3", [])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(
    ("method", "does"),
    [
        pytest.param("cat_file", lambda saver: saver.save(2, group=None), id="save"),
        pytest.param("ls", lambda saver: saver.restore(None), id="restore"),
    ],
)
def test_store_that_no_longer_answers_is_named(
    monkeypatch: pytest.MonkeyPatch, method: str, does: Callable[[Checkpointer], object]
) -> None:
    """It answered until then, also when the folder was claimed."""
    said: list[str] = []
    is_said = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        is_said.set()

    saver, _ = checkpointer(RUN, say)
    saver.save(1, group=None)
    answer = getattr(MemoryFileSystem, method)

    def silent(*args: Any, **how: Any) -> Any:
        assert is_said.wait(60), "nothing was said while the store did not answer"
        return answer(*args, **how)

    monkeypatch.setattr("dtj.checkpoint.answers.SILENT_S", 0.01)
    monkeypatch.setattr(MemoryFileSystem, method, silent)
    monkeypatch.setattr(Owner, "claim", lambda _: None)
    does(saver)
    assert f"{RUN} has not answered for 0 s: every rank waits for it" in said


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("damaged", [False, True])
def test_shards_are_saved_restored_and_exported(tmp_path: Path, damaged: bool) -> None:
    writer, model = checkpointer(RUN)
    states = []
    for step in (1, 2):
        torch.nn.init.constant_(next(model.parameters()), step)
        states.append(copy.deepcopy(model.state_dict()))
        writer.save(step, group=None)
    if damaged:
        shard = storage.content(RUN / "step-2") / paths.SHARDS / "__0_0.distcp"
        shard.write_bytes(shard.read_bytes().replace(torch.ones(9).mul(2).numpy().tobytes(), b"\1" * 36))
    said: list[str] = []
    again, restored = checkpointer(RUN, said.append)
    step = 1 if damaged else 2
    assert again.restore(None) == step
    torch.testing.assert_close(restored.state_dict(), states[step - 1], rtol=0, atol=0)
    assert any("step-2 is unreadable and was skipped" in line for line in said) == damaged

    export.export(RUN / "step-1", tmp_path / "w.pt", part="model")
    torch.testing.assert_close(dict(weights.read(tmp_path / "w.pt")), dict(states[0]), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        pytest.param("s4://bucket/run", "Protocol not known: s4", id="an unknown protocol"),
        pytest.param("s3://", "does not name a folder", id="no bucket"),
        pytest.param("simplecache::s3://bucket/run", "does not name a folder", id="a cache before the store"),
    ],
)
def test_url_that_cannot_hold_checkpoints_is_refused(url: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        locate(url)


def test_packages_are_named_for_a_protocol_that_nothing_knows() -> None:
    with pytest.raises(RecipeError) as raised:
        locate("s4://bucket/run")
    assert all(name in raised.value.fix for name in ("s3fs", "gcsfs", "adlfs"))


@pytest.mark.parametrize(
    ("protocol", "module", "fix"),
    [
        pytest.param("s3", "s3fs", "pip install s3fs", id="s3"),
        pytest.param("gs", "gcsfs", "pip install gcsfs", id="gs"),
        pytest.param("gcs", "gcsfs", "pip install gcsfs", id="the other name of gs"),
        pytest.param("az", "adlfs", "pip install adlfs", id="az"),
        pytest.param("abfs", "adlfs", "pip install adlfs", id="the other name of az"),
        pytest.param("sftp", "paramiko", "install what is missing", id="a file system of fsspec's own"),
    ],
)
def test_missing_package_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, protocol: str, module: str, fix: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.sftp", raising=False)
    monkeypatch.delitem(
        sys.modules["fsspec.registry"]._registry, protocol, raising=False
    )  # if it was imported
    url = f"{protocol}://bucket/run"
    with pytest.raises(
        RecipeError, match=f"{url} needs a package that is not installed .*{module}"
    ) as raised:
        locate(url)
    assert raised.value.fix.startswith(fix)


def test_url_of_a_file_is_a_local_folder() -> None:
    assert locate("file:///checkpoints/run") == Path("/checkpoints/run")


@pytest.mark.parametrize("error", [FileNotFoundError, NotImplementedError])
def test_missing_bucket_and_read_only_store_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refused)
    with pytest.raises(RecipeError, match="no checkpoint can be written to memory://bucket/run"):
        checkpointer(RUN)[0].claim()
