"""Pods are lost under a strategy whose ranks cannot hand over state: their buddies have copies of it."""

import contextlib
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from dtj.copies.slot import LABEL_BYTES, Header
from tests.process.dtj.conftest import PROGRAMS, Start, children, wait_for
from tests.process.dtj.test_copies import trace
from tests.process.dtj.test_pod_loss import Pods, lose

PODS = 3
COPIED = 6  # step of the newest copy when pods are lost; the checkpoint is of step 5
FLAGS = ("--parallel", "fsdp", "--memory-every", 3, "--save-every", 5)


def keeps(agent: int, ward: int, step: int) -> bool:
    """Whether the pod of an agent, by its pid, has the copy of that step of another pod's rank."""
    found = set()
    for child in children(agent):
        with contextlib.suppress(OSError):  # it has ended, or closed a file: look again
            for link in Path(f"/proc/{child}/fd").iterdir():
                if f"memfd:dtj-rank-{ward}-" in str(link.readlink()):
                    with link.open("rb") as file:
                        header = Header.parse(file.read(LABEL_BYTES))
                    found |= {header.label.step} if header else set()
    return step in found


@pytest.mark.parametrize(
    ("lost", "resumed_at"),
    [
        pytest.param([0], COPIED, id="replica 0, the coordinator"),
        pytest.param([1, 2], 5, id="a pod together with its buddy"),
    ],
)
def test_lost_pod_continues_from_the_copy_that_its_buddy_keeps(
    start: Start, tmp_path: Path, lost: Sequence[int], resumed_at: int
) -> None:
    """No checkpoint can be read, unless a pod is lost with its buddy."""
    out, saved = tmp_path / "out", tmp_path / "saved"
    job = Pods(start, out, replicas=PODS, STEPS=10, WAIT_AT=COPIED + 2)
    words = ("--checkpoint", saved, *FLAGS)
    pods = [job.run(index, *words, program=PROGRAMS / "gpt.py") for index in range(PODS)]
    for rank in range(PODS):
        buddy = pods[(rank + 1) % PODS]
        wait_for(partial(keeps, buddy.pid, rank, COPIED), "the copies to be sent")
    if resumed_at == COPIED:
        for state in saved.glob("step-*/state.pt"):
            state.write_bytes(b"damaged")
    for index in lost:
        lose(pods[index])
    for index in lost:
        pods[index] = job.run(index, *words, program=PROGRAMS / "gpt.py")
    (out / "go").touch()
    ended = [pod.wait() for pod in pods]
    assert [each.code for each in ended] == [0] * PODS, [each.err for each in ended]
    is_from_memory = f"resuming from memory, step {COPIED}" in ended[0].err + ended[0].out
    assert is_from_memory == (resumed_at == COPIED), ended[0].err
    for rank in range(PODS):
        steps = trace(out, rank)
        assert [step for step, _ in steps][-(10 - resumed_at) :] == list(range(resumed_at, 10))
        assert len(set(steps)) == 10, "a step that was done again differs"


def test_drained_pod_continues_from_the_copy_that_its_buddy_keeps(start: Start, tmp_path: Path) -> None:
    """Nothing can be saved, so the ranks of all pods stop; that uses up no restart."""
    out = tmp_path / "out"
    # Ranks agree on a stop some 0.2 s after it is asked for, which faster steps would use to reach the end.
    job = Pods(start, out, replicas=PODS, STEPS=16, STEP_S=0.05, WAIT_AT=COPIED + 2, DTJ_MAX_RESTARTS=0)
    words = ("--parallel", "fsdp", "--memory-every", 3)
    pods = [job.run(index, *words, program=PROGRAMS / "gpt.py") for index in range(PODS)]
    for rank in range(PODS):
        buddy = pods[(rank + 1) % PODS]
        wait_for(partial(keeps, buddy.pid, rank, COPIED), "the copies to be sent")
    job.evict(pods[1], 1)
    (out / "go").touch()
    assert pods[1].wait().code == 128 + signal.SIGTERM
    pods[1] = job.run(1, *words, program=PROGRAMS / "gpt.py")
    ended = [pod.wait() for pod in pods]
    assert [each.code for each in ended] == [0] * PODS, [each.err for each in ended]
    assert "resuming from memory, step " in ended[0].err + ended[0].out
