"""Two pods with one rank each, which send by NCCL: strategies, checkpoints, and each kind of failure."""

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.training import ON_GPU, Train, Trained, run_pods

PLAIN = Path(__file__).with_name("plain.py")
STRATEGIES = (
    "--parallel ddp",
    "--parallel ddp --compile",
    "--parallel ddp --micro-batch 3",
    "--parallel zero1",
    "--parallel fsdp",
    "--parallel fsdp --micro-batch 3 --reduce-once",
    "--parallel fsdp --compile --recompute",
    "--parallel tp",
    "--parallel pp",
)
LOSSY = (
    "--precision bf16",
    "--precision fp16",
    "--compress bf16",
    "--compress powersgd",
    "--compress topk",
    "--sync local:2",
    "--sync diloco:2",
    "--sync stale:1",
)
SMALL: dict[str, Any] = {"SHAPE": "tiny", "STEPS": 8}
FAILURES = {"kill": "SIGKILL", "assert": "device-side assert", "memory": "memory"}
ON_CPU_TOO = {"kill", "sleep", "spin"}
HANGS_SOON = {"DTJ_HANG_SECONDS": 10, "DTJ_HANG_WORKING_SECONDS": 30, "PACE": 0.3}


@pytest.mark.parametrize("flags", STRATEGIES)
def test_two_ranks_compute_what_one_computes(train: Train, tiny: Trained, flags: str) -> None:
    trained = train(*flags.split(), pods=2, **SMALL)
    assert trained.losses == pytest.approx(tiny.losses, rel=1e-3)
    assert trained.found["score"] == pytest.approx(tiny.found["score"], rel=1e-3)


@pytest.mark.parametrize("flags", LOSSY)
def test_approximations_learn_what_one_rank_learns(train: Train, tiny: Trained, flags: str) -> None:
    trained = train(*flags.split(), pods=2, **SMALL)
    assert trained.losses[0] == pytest.approx(tiny.losses[0], rel=0.01)
    assert trained.losses[7] < 0.98 * trained.losses[0]  # topk sends one gradient in a hundred


@pytest.mark.parametrize("how", ["fsdp", "ddp"])
def test_two_ranks_resume_what_two_ranks_saved(train: Train, tmp_path: Path, tiny: Trained, how: str) -> None:
    flags = ("--parallel", how, "--async-save", "--save-every", 2, "--checkpoint", tmp_path / "saved")
    train(*flags, pods=2, SHAPE="tiny", STEPS=4)
    rest = train(*flags, pods=2, SHAPE="tiny", STEPS=8)
    assert sorted(rest.losses) == [4, 5, 6, 7]
    assert rest.losses == pytest.approx({step: tiny.losses[step] for step in rest.losses}, rel=1e-3)


def test_one_rank_resumes_what_two_ranks_saved(train: Train, tmp_path: Path, tiny: Trained) -> None:
    saved = ("--checkpoint", tmp_path / "saved")
    train("--parallel", "fsdp", *saved, pods=2, SHAPE="tiny", STEPS=4)
    rest = train("--parallel", "none", *saved, SHAPE="tiny", STEPS=8)
    assert rest.losses == pytest.approx({step: tiny.losses[step] for step in (4, 5, 6, 7)}, rel=1e-3)


@pytest.mark.parametrize("kind", FAILURES)
def test_both_ranks_continue_from_their_copies(train: Train, tiny: Trained, kind: str) -> None:
    """There is no checkpoint: without the copies they would start at step 0 again."""
    need_gpu(kind)
    trained = train("--memory-every", 2, pods=2, DTJ_MAX_RESTARTS=1, FAULT=f"{kind}:1:5", **SMALL)
    assert "rank 1 " in trained.err
    assert FAILURES[kind] in trained.err
    if ON_GPU:
        assert min(trained.losses) > 0
    assert_as_without_failure(trained, tiny)


@pytest.mark.long(50)
@pytest.mark.parametrize(
    ("kind", "reads"),
    [("sleep", True), ("sleep", False), ("spin", True), ("spin", False), ("kernel", True)],
)
def test_rank_that_hangs_is_named(train: Train, tiny: Trained, kind: str, reads: bool) -> None:
    """Its peer waits for the GPU: that takes all of a processor, and no frame says what it waits for.

    reads  each loss, which waits for the GPU
    After its endless kernel the rank waits for the GPU before it copies its state; the peer has copied.
    """
    need_gpu(kind)
    how = {"FAULT": f"{kind}:1:5", "READ": int(reads), "DTJ_MAX_RESTARTS": 1, **HANGS_SOON}
    trained = train("--memory-every", 2, pods=2, **how, **SMALL)
    assert "rank 1 failed: no step for" in trained.errs[1]
    assert "rank 0 failed" not in trained.err
    assert_as_without_failure(trained, tiny)


@pytest.mark.long(100)
def test_rank_that_nccl_aborts_is_not_the_culprit() -> None:
    """A collective of the script has timed out: NCCL's watchdog ends the rank that waited, by SIGABRT.

    Before that it waits a minute for other ranks to write what they know.
    """
    limits = {"LIMIT": "15", "DTJ_HANG_SECONDS": "1000", "DTJ_HANG_WORKING_SECONDS": "1000"}
    ended = run_pods([str(PLAIN)], pods=2, env={"DTJ_MAX_RESTARTS": "1", **limits})
    err = "\n".join(pod.stderr for pod in ended)
    print(err)
    assert [pod.returncode for pod in ended] == [0, 0], err
    assert all("finished" in pod.stdout for pod in ended)
    assert ("Watchdog caught collective operation timeout" if ON_GPU else "lost a peer") in err
    assert "generation 2: restarted all ranks" in err
    assert "was killed by" not in err


def need_gpu(kind: str) -> None:
    """Skip failures of a GPU where the tests are tried without one."""
    if not ON_GPU and kind not in ON_CPU_TOO:
        pytest.skip("this failure is one of a GPU")


def assert_as_without_failure(trained: Trained, whole: Trained) -> None:
    assert max(trained.losses) == 7
    assert trained.losses == pytest.approx({step: whole.losses[step] for step in trained.losses}, rel=1e-3)
