"""Which agents have a part in the job whose variables they have."""

from pathlib import Path

import pytest

from dtj.agent import alone

JOB = {"DTJ_JOB": "digits", "DTJ_JOB_UID": "0b5c", "DTJ_REPLICA_INDEX": "1", "NODE_RANK": "1"}


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the agents of a pod find each other."""
    monkeypatch.setattr(alone, "_FOLDER", tmp_path)


@pytest.mark.parametrize("pod", [{"DTJ_POD": "digits-1"}, pytest.param({}, id="of an older operator")])
def test_agent_of_a_pod_has_a_part_in_its_job(pod: dict[str, str]) -> None:
    env = JOB | pod
    assert alone.leave_job(env) == ""
    assert env == JOB | pod


def test_agent_in_a_copy_of_a_pod_leaves_the_job_and_keeps_the_variables_of_the_user() -> None:
    """As after `kubectl debug digits-1 --copy-to=digits-1-debug`."""
    env = JOB | {"DTJ_POD": "digits-1-debug", "DTJ_CHECKPOINT_DIR": "/checkpoints/digits", "LANG": "C"}
    assert alone.leave_job(env) == "this pod is a copy of digits-1"
    assert env == {"LANG": "C"}


def test_agent_without_a_job_has_nothing_to_leave() -> None:
    env = {"NODE_RANK": "1", "NNODES": "2"}
    assert alone.leave_job(env) == ""
    assert env == {"NODE_RANK": "1", "NNODES": "2"}
