"""A job from its manifest on one machine: ranks heal in place, lost replicas are replaced."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.process.dtj.conftest import SIZES, SMALL, Start, children, is_dead, wait_for
from tests.process.dtj.test_resume import assert_identical, weights


def manifest(folder: Path, **env: object) -> Path:
    """Write a job of two replicas that trains SMALL; its output goes to the folder too."""
    values = {"OUT": folder, "PLAIN": 1, **SIZES, **env}
    container = {
        "name": "trainer",
        "image": "registry.example.com/trainer",
        "args": ["run", str(SMALL)],
        "env": [{"name": name, "value": str(value)} for name, value in values.items()],
    }
    job = {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "digits"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [container]}}},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"


def test_killed_rank_and_killed_replica_leave_no_trace_in_the_result(
    start: Start, unbroken: Callable[..., Path], tmp_path: Path
) -> None:
    job = manifest(tmp_path, FAULTS="1@3:forward:SIGKILL", HOLD_AT=7)
    command = start("run", "-f", job, "--local")
    wait_for((tmp_path / "at-7").exists, "step 7")
    lost = children(command.pid)[1]
    os.kill(lost, signal.SIGKILL)
    wait_for(lambda: is_dead(lost), "the replica to end")
    (tmp_path / "go-7").touch()
    ended = command.wait()
    assert ended.code == 0, ended.err
    assert "no effect on this machine: spec.template.spec.containers[0].image\n" in ended.err
    assert "rank 1 was killed by SIGKILL" in ended.err
    assert re.search(r"replica \d was killed by SIGKILL: replaced \(1 of 10 restarts", ended.err)
    assert_identical(weights(unbroken(2, PLAIN=1)), weights(tmp_path))


def test_failure_beyond_the_budget_ends_all_replicas_with_its_code(start: Start, tmp_path: Path) -> None:
    job = manifest(tmp_path, FAULTS="1@3:forward:exit")
    text = job.read_text().replace("  replicas: 2\n", "  replicas: 2\n  recovery: {maxRestarts: 0}\n")
    job.write_text(text)
    ended = start("run", "-f", job, "--local").wait()
    assert ended.code == 3, ended.err
    assert "replica 1 ended with exit code 3" in ended.err


def test_job_ends_with_the_replicas_that_decide_its_success(start: Start, tmp_path: Path) -> None:
    """Whatever the others do: they are plain programs, which end by the signal."""
    job = manifest(tmp_path)
    found = yaml.safe_load(job.read_text())
    found["spec"]["successPolicy"] = {"replicas": [0]}
    script = 'touch "$OUT/runs-$NODE_RANK"; [ "$NODE_RANK" = 0 ] || exec sleep 600; '
    script += 'until [ -e "$OUT/runs-1" ]; do sleep 0.01; done'
    found["spec"]["template"]["spec"]["containers"][0] |= {"command": ["sh", "-c"], "args": [script]}
    job.write_text(yaml.safe_dump(found))
    ended = start("run", "-f", job, "--local").wait()
    assert ended.code == 0, ended.err
    assert "the replicas of successPolicy have succeeded: ending the others" in ended.err


def test_ranks_find_modules_in_the_folders_of_the_jobs_variable(start: Start, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "module_of_the_job.py").touch()
    (tmp_path / "script.py").write_text("import module_of_the_job")
    job = manifest(tmp_path, PYTHONPATH="$(OUT)/lib")
    job.write_text(job.read_text().replace(str(SMALL), str(tmp_path / "script.py")))
    ended = start("run", "-f", job, "--local").wait()
    assert ended.code == 0, ended.err


def test_ctrl_c_ends_all_replicas(start: Start, tmp_path: Path) -> None:
    job = manifest(tmp_path, STEPS=100_000, READY_AT=3)
    command = start("run", "-f", job, "--local", "--checkpoint", tmp_path / "saved")
    wait_for((tmp_path / "ready").exists, "step 3")
    replicas = children(command.pid)
    command.signal(signal.SIGINT)
    assert command.wait().code == 75
    assert all(is_dead(pid) for pid in replicas)
    assert list((tmp_path / "saved").glob("step-*"))


# `dtj`, asked to stop at the moment when it is about to replace a replica.
STOPPED_BEFORE_A_REPLACEMENT = """
import os, signal, sys
from dtj.cli import commands
from dtj.local import replicas

def log(message):
    print(message, file=sys.stderr)
    if "replaced" in message:
        os.kill(os.getpid(), signal.SIGTERM)

replicas.say = log
commands.main()
"""
LOSES_ITS_AGENT = """
import os, pathlib, signal, time

killed = pathlib.Path(os.environ["OUT"], "killed")
if os.environ["GROUP_RANK"] == "1" and not killed.exists():
    killed.touch()
    os.kill(os.getppid(), signal.SIGKILL)
time.sleep(600)
"""


def test_no_replica_is_replaced_after_a_signal(start: Start, tmp_path: Path) -> None:
    """A replacement would not get the signal, and the command would never end."""
    (tmp_path / "script.py").write_text(LOSES_ITS_AGENT)
    (tmp_path / "stopped.py").write_text(STOPPED_BEFORE_A_REPLACEMENT)
    job = manifest(tmp_path)
    job.write_text(job.read_text().replace(str(SMALL), str(tmp_path / "script.py")))
    ended = start("python", tmp_path / "stopped.py", "run", "-f", job, "--local").wait()
    assert "replaced (1 of 10 restarts" in ended.err
    assert ended.code == 128 + signal.SIGKILL, ended.err
