"""--check-every: ranks that should hold the same state are compared bit for bit."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dtj.step.replicas import explain, fingerprint

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
