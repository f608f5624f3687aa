"""Two agents train with the same checkpoint folder: the agent that started first ends."""

import json
import os
import signal
import uuid
from pathlib import Path

import pytest

from tests.process.dtj.conftest import SIZES, SMALL, Command, Start, free_port, wait_for
from tests.process.dtj.test_status_server import status
from tests.support.checkpoints import names

SENTENCE = "belongs to a process that started later"


def new_uid() -> str:
    """The tests run side by side; agents of one job would take each other for a second one in their pod."""
    return uuid.uuid4().hex


class Folder:
    """A checkpoint folder, and agents that train with it and save after each step."""

    def __init__(self, start: Start, tmp_path: Path) -> None:
        self.path = tmp_path / "saved"
        self._start = start
        self._tmp_path = tmp_path

    def train(self, name: str, *flags: object, hold_at: int, **env: object) -> Command:
        """Start an agent; when this returns, its rank 0 waits in that step for the file `go` of `go_on`."""
        out = self._tmp_path / name
        out.mkdir()
        found = self._start(
            *("run", "--save-every", 1, "--max-restarts", 3, *flags, SMALL),
            **{"OUT": out, "DTJ_CHECKPOINT_DIR": self.path, "HOLD_AT": hold_at, "PLAIN": 1, **SIZES, **env},
        )
        wait_for((out / f"at-{hold_at}").exists, f"step {hold_at} of the {name} one")
        return found

    def go_on(self, name: str) -> None:
        for at in (self._tmp_path / name).glob("at-*"):
            at.with_name(at.name.replace("at", "go")).touch()

    @property
    def content(self) -> tuple[list[str], bytes]:
        return names(self.path), (self.path / "owner.json").read_bytes()


@pytest.fixture
def folder(start: Start, tmp_path: Path) -> Folder:
    return Folder(start, tmp_path)


def assert_ends_alone(folder: Folder, old: Command, before: tuple[list[str], bytes]) -> None:
    """The old agent ends, and has changed nothing; the new one is still able to train to its end."""
    ended = old.wait()
    assert (ended.code, ended.err.count(SENTENCE)) == (76, 1), ended.err
    assert "generation 2" not in ended.err  # a restart in place would not help
    assert folder.content == before


def test_old_pod_of_a_lost_node_trains_beside_its_replacement(folder: Folder) -> None:
    old = folder.train("old", hold_at=5)
    new = folder.train("new", hold_at=9)
    before = folder.content
    folder.go_on("old")
    assert_ends_alone(folder, old, before)
    folder.go_on("new")
    assert new.wait().code == 0
    assert names(folder.path) == ["step-15", "step-16"]


def test_ranks_of_a_cut_off_pod_that_start_later_do_not_take_the_folder_back(folder: Folder) -> None:
    """A minority that continues alone restarts its ranks: its agent is older than the replacement."""
    port = free_port()
    old = folder.train("old", "--port", port, hold_at=5)
    new = folder.train("new", hold_at=9)
    before = folder.content
    wait_for(lambda: status(port).get("ranks"), "a status that lists the rank")
    os.kill(status(port)["ranks"][0]["pid"], signal.SIGKILL)
    ended = old.wait()
    assert (ended.code, ended.err.count(SENTENCE)) == (76, 1), ended.err
    assert folder.content == before
    folder.go_on("new")
    assert new.wait().code == 0


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
def test_pod_on_a_lost_node_and_its_replacement(folder: Folder, tmp_path: Path, *, sharded: bool) -> None:
    """Both have the variables of the job, and reach its volume."""
    env = {"DTJ_JOB": "digits", "DTJ_JOB_UID": new_uid(), "DTJ_AGENT_PORT": free_port()}
    flags = ("--nproc", 2, "--parallel", "fsdp" if sharded else "ddp", "--termination-log")
    old = folder.train("old", *flags, tmp_path / "log", hold_at=5, **env)
    new = folder.train("new", *flags, os.devnull, hold_at=9, DTJ_RESTARTS=1, **env)
    before = folder.content
    folder.go_on("old")
    assert_ends_alone(folder, old, before)
    told = json.loads((tmp_path / "log").read_text())
    assert (told["reason"], told["exitCode"]) == ("Superseded", 76)
    assert "job digits, host " in told["message"]
    folder.go_on("new")
    assert new.wait().code == 0


def test_second_agent_in_a_pod_runs_alone(folder: Folder, start: Start, tmp_path: Path) -> None:
    """`kubectl exec digits-1 -- dtj run check.py`: it has the variables of the job."""
    env = {"DTJ_JOB": "digits", "DTJ_JOB_UID": new_uid(), "DTJ_AGENT_PORT": free_port(), "WORLD_SIZE": 1}
    first = folder.train("first", "--termination-log", os.devnull, hold_at=5, **env)
    before = folder.content
    check = tmp_path / "check.py"
    check.write_text("import os; print(sorted(name for name in os.environ if name.startswith('DTJ_CHECK')))")
    second = start("run", "--nproc", 2, check, **env | {"DTJ_CHECKPOINT_DIR": folder.path}).wait()
    assert (second.code, sorted(second.out.splitlines())) == (0, ["[rank 0] []", "[rank 1] []"])
    assert "another agent runs this replica of the job; this agent runs alone" in second.err
    assert folder.content == before
    folder.go_on("first")
    assert first.wait().code == 0
