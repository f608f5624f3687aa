"""--check-every: ranks that should hold the same state are compared bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dtj.step.replicas import explain, fingerprint
from tests.unit.dtj.conftest import PROGRAMS, Finished

Finish = Callable[..., Finished]

DRIFTING = """
import os
import torch
import dtj

run = dtj.init()
model = run.parallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = run.data(torch.utils.data.TensorDataset(torch.ones(64, 4)), global_batch=8)
run.state(model=model, optimizer=optimizer, data=data)
for batch in run.steps(8):
    run.backward(lambda mb: model(mb[0]).square().mean(), batch)
    optimizer.step()
    optimizer.zero_grad()
    if run.rank == 1 and run.step == 3:
        weight = next(model.parameters())
        with torch.no_grad():
            changed = weight if os.environ["WHAT"] == "weight" else optimizer.state[weight]["momentum_buffer"]
            changed[0, 2] += 1e-6 * changed[0, 2]
"""


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        pytest.param("weight", "rank 1 differs in model.weight\n", id="a weight"),
        pytest.param(
            "momentum", "rank 1 differs in optimizer's momentum_buffer of model.weight\n", id="momentum"
        ),
    ],
)
def test_rank_that_differs_is_named_at_the_next_check(
    finish: Finish, tmp_path: Path, what: str, expected: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(DRIFTING)
    ended = finish("run", "--nproc", 3, "--check-every", 2, script, WHAT=what)
    assert ended.code == 1
    assert f"the ranks have different state after step 4: {expected}" in ended.err
    assert "fix: look for code that changes weights on that rank only" in ended.err


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="ddp"),
        pytest.param(("--parallel", "zero1"), id="zero1"),
        pytest.param(("--compress", "topk:5"), id="topk"),
        pytest.param(("--sync", "local:2"), id="local, compared at sync points"),
        pytest.param(("--sync", "stale:2"), id="stale"),
    ],
)
def test_ranks_stay_equal_with_every_policy(finish: Finish, tmp_path: Path, flags: tuple[str, ...]) -> None:
    ended = finish("run", "--nproc", 2, "--check-every", 1, *flags, PROGRAMS / "gpt.py", OUT=tmp_path)
    assert ended.code == 0, ended.err


NUMBERS = st.lists(st.floats(width=32), min_size=1, max_size=40)


@given(NUMBERS, st.data())
def test_one_bit_changes_the_fingerprint(numbers: list[float], data: st.DataObject) -> None:
    value = torch.tensor(numbers)
    other = value.clone()
    place = data.draw(st.integers(0, len(numbers) - 1))
    other.view(torch.int32)[place] ^= 1 << data.draw(st.integers(0, 30))
    assert fingerprint(value) != fingerprint(other)


@given(NUMBERS)
@example([1, 0, 0, 0, 1, 1, 0])  # places that add up to the same in both directions
def test_fingerprint_depends_only_on_bits_and_places(numbers: list[float]) -> None:
    value = torch.tensor(numbers)
    strided = torch.stack([value, value + 1], dim=1)[:, 0]
    assert fingerprint(value) == fingerprint(strided)
    turned = value.flip(0)
    same = torch.equal(value.view(torch.int32), turned.view(torch.int32))
    assert (fingerprint(value) == fingerprint(turned)) == same


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64, torch.complex64, torch.bool, torch.int64])
def test_any_type_has_a_fingerprint(kind: torch.dtype) -> None:
    value = torch.arange(2).to(kind)
    assert fingerprint(value) == fingerprint(value.clone())
    assert fingerprint(value) != fingerprint(value.flip(0))
    assert fingerprint(value[:0]) == 0


def test_all_chunks_of_a_large_tensor_count() -> None:
    found = set()
    for place in (2, 2**15 + 2, 2**20 + 2, 2**20 + 1):
        value = torch.zeros(2**20 + 3, dtype=torch.int8)
        value[place] = 1
        found.add(int(fingerprint(value)))
    assert len(found) == 4


@pytest.mark.parametrize(
    ("fingerprints", "expected"),
    [
        pytest.param([{"w": 1}, {"w": 1}, {"w": 2}], "rank 2 differs in w", id="one of three"),
        pytest.param([{"w": 1}, {"w": 2}], "rank 1 differs in w", id="one of two, compared with rank 0"),
        pytest.param(
            [{"a": 1, "w": 5}, {"a": 2, "w": 6}, {"a": 1, "w": 7}, {"a": 1, "w": 5}],
            "ranks 1, 2 differ in a and 1 more",
            id="several",
        ),
        pytest.param(
            [{"w": 1}, {"w": 1, "v": 2}, {"w": 1}], "rank 1 differs in v", id="a tensor that others lack"
        ),
    ],
)
def test_ranks_that_differ_are_named(fingerprints: list[dict[str, int]], expected: str) -> None:
    assert explain(fingerprints) == expected
