"""A rank is lost under strategies whose ranks cannot hand over state: all continue from copies in memory."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.dtj.conftest import PROGRAMS, Finished

Finish = Callable[..., Finished]


def trace(out: Path, rank: int) -> list[tuple[int, str]]:
    """(step, checksums) of every step that the rank did, in the order in which it did them."""
    lines = (out / f"trace-{rank}").read_text().splitlines()
    return [(int(step), rest) for step, _, rest in (line.partition(" ") for line in lines)]


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--nproc", 2, "--parallel", "fsdp"), id="fsdp"),
        pytest.param(("--nproc", 4, "--parallel", "tp+ddp", "--mesh", "tp=2"), id="tp+ddp"),
        pytest.param(("--nproc", 4, "--parallel", "tp+fsdp", "--mesh", "tp=2"), id="tp+fsdp"),
        pytest.param(("--nproc", 4, "--parallel", "pp+ddp", "--mesh", "pp=2"), id="pp+ddp"),
        pytest.param(("--nproc", 2, "--parallel", "zero1"), id="zero1"),
        pytest.param(("--nproc", 2, "--sync", "diloco:2"), id="diloco"),
        pytest.param(("--nproc", 1), id="a single rank"),
    ],
)
def test_lost_rank_costs_no_more_than_the_steps_since_the_last_copy(
    finish: Finish, tmp_path: Path, flags: tuple[object, ...]
) -> None:
    """No checkpoint can be read. Steps that are done again have the same loss and weights, bit for bit."""
    keeping = ("--checkpoint", tmp_path / "run", "--save-every", 4, "--memory-every", 4, "--max-restarts", 1)
    # All batches of one size, one block and no clipping: torch plans fewer operations on sharded tensors.
    sizes = {"STEPS": 7, "SAMPLES": 96, "LAYERS": 1}
    ended = finish("run", *keeping, *flags, PROGRAMS / "gpt.py", OUT=tmp_path, LOSE_AT=6, **sizes)
    assert ended.code == 0, ended.err
    assert "generation 2: restarted all ranks" in ended.err
    assert "resuming from memory, step 4" in ended.err
    ranks = int(str(flags[1]))
    for rank in range(ranks):
        steps = trace(tmp_path, rank)
        before, after = steps[:-3], steps[-3:]
        assert [step for step, _ in before] == list(range(len(before)))
        # Another rank may lose the dead one in step 6; under diloco it may train until the next sync point.
        assert len(before) >= (6 if rank == ranks - 1 else 5)
        assert [step for step, _ in after] == [4, 5, 6]
        assert len(set(steps)) == 7, "a step that was done again differs"
