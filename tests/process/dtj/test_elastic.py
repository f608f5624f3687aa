"""The size of a job changes while it trains: no new attempt, no lost step, every sample once per epoch."""

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.process.dtj.conftest import PROGRAMS, Command, Start, wait_for
from tests.process.dtj.test_pod_loss import Pods, lose

EPOCH = 8  # steps: 96 samples, 12 per step


def elastic(start: Start, out: Path, **env: object) -> Pods:
    """A job of two replicas that may have one to four."""
    return Pods(start, out, replicas=2, DTJ_MIN_REPLICAS=1, DTJ_MAX_REPLICAS=4, **env)


def trained(out: Path) -> dict[int, Counter[int]]:
    """Step -> how many times each sample was used in it, over all ranks and their restarts."""
    found: dict[int, Counter[int]] = {}
    for file in out.glob("seen-*.txt"):
        for line in file.read_text().splitlines():
            step, *samples = map(int, line.split())
            found.setdefault(step, Counter()).update(samples)
    return found


def assert_every_sample_once_an_epoch(out: Path, steps: int) -> None:
    found = trained(out)
    assert sorted(found) == list(range(steps))
    for first in range(0, steps, EPOCH):
        epoch = sum((found[step] for step in range(first, first + EPOCH)), Counter[int]())
        assert epoch == Counter(range(96))


def has_formed(pod: Command, size: str) -> bool:
    return f" {size}; restarted all ranks" in pod.err


def test_job_grows_and_shrinks_while_it_trains(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = elastic(start, out, STEPS=32, STEP_S=0.05, HOLD_AT="3 13 23")
    flags = ("--checkpoint", tmp_path / "saved")

    def hold(step: int) -> None:
        wait_for((out / f"at-{step}").exists, f"step {step}")

    first, second = (job.run(index, *flags) for index in range(2))
    hold(3)
    third = job.run(2, *flags)
    wait_for(lambda: has_formed(first, "3 replicas"), "three replicas")
    wait_for(lambda: job.status().get("state") == "Recovering", "rank 0 to be restarted")
    (out / "go-3").touch()
    hold(13)
    for pod in (third, second):
        pod.signal(signal.SIGTERM)
    wait_for(lambda: has_formed(first, "1 replica"), "one replica")
    (out / "go-13").touch()
    assert [pod.wait().code for pod in (third, second)] == [75, 75]
    hold(23)
    others = [job.run(index, *flags) for index in (3, 1, 2)]
    wait_for(lambda: has_formed(first, "4 replicas"), "four replicas")
    (out / "go-23").touch()
    ended = [pod.wait() for pod in (first, *others)]
    assert [e.code for e in ended] == [0, 0, 0, 0], [e.err for e in ended]
    assert_every_sample_once_an_epoch(out, 32)
    assert ended[0].err.count("(0 of 5 in-place restarts used)") == ended[0].err.count("dtj: generation ")


def test_job_that_cannot_save_grows_once_it_can(start: Start, tmp_path: Path) -> None:
    """Otherwise its ranks would start again at step 0."""
    out, volume = tmp_path / "out", tmp_path / "volume"
    volume.touch()  # not a folder: root may write into every folder
    job = elastic(start, out, STEPS=16, STEP_S=0.05, HOLD_AT="3 7 12")
    flags = ("--checkpoint", volume / "run", "--save-every", 5)
    first, second = (job.run(index, *flags) for index in range(2))
    wait_for((out / "at-3").exists, "step 3")
    third = job.run(2, *flags)
    wait_for(lambda: "a job that cannot write its checkpoints cannot grow" in first.err, "the message")
    (out / "go-3").touch()
    wait_for((out / "at-7").exists, "step 7")
    volume.unlink()
    (out / "go-7").touch()
    wait_for(lambda: has_formed(first, "3 replicas"), "three replicas, once step 10 is saved")
    (out / "go-12").touch()
    ended = [pod.wait() for pod in (first, second, third)]
    assert [e.code for e in ended] == [0, 0, 0], [e.err for e in ended]
    assert_every_sample_once_an_epoch(out, 16)


def test_job_skips_a_size_that_its_mesh_does_not_fit_and_repeats_no_step(
    start: Start, tmp_path: Path
) -> None:
    """The rank that is not needed any more is healthy, and the others wait for it in the save."""
    out = tmp_path / "out"
    # Ranks agree on a stop some 0.2 s after it is asked for, which faster steps would use to reach the end.
    job = elastic(start, out, NNODES=4, STEPS=16, STEP_S=0.05, WAIT_AT=5)
    flags = ("--checkpoint", tmp_path / "run", "--parallel", "hsdp", "--mesh", "fsdp=2")
    pods = [job.run(index, *flags, program=PROGRAMS / "gpt.py") for index in range(4)]
    wait_for(lambda: (out / "step").exists() and (out / "step").read_text() == "4", "step 4")
    job.evict(pods[3], 3)
    wait_for(lambda: has_formed(pods[0], "2 replicas"), "the decision")
    (out / "go").touch()
    ended = [pod.wait() for pod in pods]
    assert [e.code for e in ended] == [0, 0, 0, 75], [e.err for e in ended]
    steps = [int(line.split()[0]) for line in (out / "trace-0").read_text().splitlines()]
    assert steps == list(range(16))
    assert "the job continues with 2 replicas; this replica waits until it is needed" in ended[2].err


def test_evicted_pod_in_the_middle_is_waited_for(start: Start, tmp_path: Path) -> None:
    """The others have saved and keep their pods; the replacement joins them at the same size."""
    out = tmp_path / "out"
    job = elastic(start, out, STEPS=16, STEP_S=0.05, HOLD_AT="5", NNODES=3)
    flags = ("--checkpoint", tmp_path / "saved")
    pods = [job.run(index, *flags) for index in range(3)]
    wait_for((out / "at-5").exists, "step 5")
    job.evict(pods[1], 1)
    (out / "go-5").touch()
    assert pods[1].wait().code == 75
    pods[1] = job.run(1, *flags)
    assert [pod.wait().code for pod in pods] == [0, 0, 0]
    assert_every_sample_once_an_epoch(out, 16)


def test_replacement_of_a_lost_pod_gets_the_state_of_the_others(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = elastic(start, out, STEPS=16, HOLD_AT="5")
    pods = [job.run(index) for index in range(2)]
    wait_for((out / "at-5").exists, "step 5")
    lose(pods[1])
    pods[1] = job.run(1)
    (out / "go-5").touch()
    ended = [pod.wait() for pod in pods]
    assert [e.code for e in ended] == [0, 0]
    assert "restarted rank 1; other ranks kept their state" in ended[0].err


def test_waiting_pod_that_is_asked_to_terminate_does_not_count_as_done(start: Start, tmp_path: Path) -> None:
    """Otherwise it would never be recreated."""
    job = elastic(start, tmp_path, STEPS=100_000)
    first, waits = job.run(0), job.run(2)
    wait_for(lambda: "waiting for replica 1" in first.err, "replica 0 to wait for the others")
    job.run(1)
    wait_for(lambda: "a job without a checkpoint folder cannot grow" in first.err, "the message")
    waits.signal(signal.SIGTERM)
    assert waits.wait().code == 128 + signal.SIGTERM
    said = json.loads((tmp_path / "log-2").read_text())
    assert (said["reason"], said["exitCode"]) == ("Signal", 128 + signal.SIGTERM)


@pytest.mark.parametrize("saves", [True, False], ids=["with a checkpoint", "without"])
def test_plain_script_is_restarted_with_the_new_size(start: Start, tmp_path: Path, *, saves: bool) -> None:
    """It saves by itself; the agent assumes so if the job has a checkpoint folder."""
    folder = {"DTJ_CHECKPOINT_DIR": tmp_path} if saves else {}
    job = elastic(start, tmp_path, FAIL="9@99:raise", WAIT_AT=7, **folder)
    pods = [job.run(index, program=PROGRAMS / "plain.py") for index in range(2)]
    wait_for((tmp_path / "at-7").exists, "step 7")
    pods.append(job.run(2, program=PROGRAMS / "plain.py"))
    if saves:
        wait_for(lambda: has_formed(pods[0], "3 replicas"), "three replicas")
    else:
        wait_for(lambda: "a job without a checkpoint folder cannot grow" in pods[0].err, "the message")
    (tmp_path / "go").touch()
    ended = [pod.wait() for pod in pods]
    assert [e.code for e in ended] == [0, 0, 0], [e.err for e in ended]
    assert [f"rank {rank} ends" in e.out for rank, e in enumerate(ended)] == [True, True, saves]
