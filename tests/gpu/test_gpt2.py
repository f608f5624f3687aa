"""GPT-2 124M on a GPU: number formats, compilation, evaluation, resume, and a rank that dies."""

import re
from pathlib import Path

import pytest

from tests.gpu.training import ON_GPU, Train, Trained

SLACK = 1.02  # of memory: the allocator rounds up, and cuBLAS keeps a workspace


def falls(losses: dict[int, float]) -> bool:
    """Whether the last losses are well below the first."""
    ordered = [losses[step] for step in sorted(losses)]
    return ordered[-1] < 0.9 * ordered[0]


def assert_continues(whole: Trained, rest: Trained) -> None:
    """The losses of `rest` are those of the same steps of a run without a break."""
    expected = {step: whole.losses[step] for step in rest.losses}
    # Kernels on GPUs add in any order, so equal bits are not promised there.
    assert rest.losses == (pytest.approx(expected, rel=0.01) if ON_GPU else expected)


@pytest.mark.parametrize("flags", [("--compile",), ()], ids=["compiled", "not compiled"])
def test_bf16_learns_what_float32_learns(train: Train, float32: Trained, flags: tuple[str, ...]) -> None:
    trained = train("--precision", "bf16", *flags, "--micro-batch", 4, STEPS=16)
    assert falls(trained.losses)
    assert trained.losses == pytest.approx(float32.losses, rel=0.02)
    assert trained.found["score"] == pytest.approx(float32.found["score"], rel=0.02)
    assert trained.found["types"] == ["torch.float32"]


def test_fp16_learns_what_float32_learns(train: Train, float32: Trained) -> None:
    """The first loss scale may overflow, and such a step is skipped: so only the end is compared."""
    trained = train("--precision", "fp16", "--micro-batch", 4, STEPS=16)
    assert falls(trained.losses)
    assert trained.losses[15] == pytest.approx(float32.losses[15], rel=0.1)


def test_optimizer_updates_all_weights_in_one_kernel(train: Train) -> None:
    assert train("--precision", "bf16", "--micro-batch", 4, STEPS=2).found["fused"] == ON_GPU


@pytest.mark.parametrize(
    ("how", "also"),
    [
        ("--precision bf16", set()),
        ("--precision fp16", {"precision"}),  # as torch's GradScaler: whether to skip the step
        ("--memory-every 3", {"finite", "tree"}),  # to copy the state, after the weights were checked
        ("--compile", set()),
    ],
)
def test_steps_do_not_wait_for_the_gpu(train: Train, how: str, also: set[str]) -> None:
    """Else the GPU has nothing to do while Python prepares the next kernels. A log line may wait."""
    trained = train(*how.split(), "--micro-batch", 4, STEPS=16, WATCH=4)
    waits = re.findall(r"(\w+)\.py:\d+: UserWarning: called a synchronizing", trained.err)
    assert set(waits) <= {"logger", *also}
    assert bool(waits) == ON_GPU


def test_evaluation_needs_no_more_memory_than_training(train: Train) -> None:
    found = train("--precision", "bf16", "--micro-batch", 4, STEPS=3).found
    assert found["peak of evaluation"] <= SLACK * found["peak of training"]


def test_smaller_micro_batches_need_less_memory(train: Train) -> None:
    small, large = (train("--precision", "bf16", "--micro-batch", size, STEPS=3) for size in (2, 8))
    assert small.losses == pytest.approx(large.losses, rel=0.02)
    if ON_GPU:
        assert small.found["peak of training"] < 0.8 * large.found["peak of training"]


def test_frozen_norms_stay_as_they_are(train: Train) -> None:
    trained = train("--precision", "bf16", "--compile", "--micro-batch", 4, STEPS=16, FREEZE="norm")
    assert falls(trained.losses)
    assert trained.found["frozen"] > 0
    assert trained.found["unchanged"]


@pytest.mark.parametrize("flags", [("--compile",), ()], ids=["compiled", "not compiled"])
def test_resumed_run_continues_as_if_it_had_not_stopped(
    train: Train, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    how = ("--precision", "bf16", "--micro-batch", 4, *flags)
    whole = train(*how, STEPS=12)
    train(*how, "--checkpoint", tmp_path / "saved", STEPS=6)
    rest = train(*how, "--checkpoint", tmp_path / "saved", STEPS=12)
    assert sorted(rest.losses) == list(range(6, 12))
    assert_continues(whole, rest)


def test_killed_rank_continues_from_its_copy_in_memory(train: Train) -> None:
    """There is no checkpoint: without the copy it would start at step 0 again."""
    trained = train(
        "--precision",
        "bf16",
        "--micro-batch",
        4,
        "--memory-every",
        2,
        "--max-restarts",
        1,
        STEPS=12,
        FAULT="kill:0:7",
    )
    assert "rank 0 was killed by SIGKILL" in trained.err
    assert min(trained.losses) > 0
    assert max(trained.losses) == 11
    whole = train("--precision", "bf16", "--micro-batch", 4, STEPS=12)
    assert_continues(whole, trained)
