"""State that is copied to memory comes back the same, and executes nothing."""

from collections import Counter, OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from dtj.copies.tree import Packed, unpack
from dtj.errors import CheckpointError, DtjError

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
# Hypothesis also tries the constants of our code, and this one marks the place of a tensor.
KEYS = st.text().filter(lambda key: key != "dtj/shard")
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS | st.integers() | st.booleans(), inner)
        | st.dictionaries(KEYS, inner).map(OrderedDict)
    ),
)


def there_and_back(state: Any) -> Any:
    packed = Packed(state)
    memory = bytearray(packed.length)
    packed.fill(memoryview(memory))
    found = unpack(memoryview(memory), lambda _: None)
    memory[:] = bytes(len(memory))  # the next copy must not change what was loaded
    return found


def types_of(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value), [(type(k), types_of(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [types_of(each) for each in value]
    return type(value)


@given(STATES)
def test_plain_values_keep_value_and_type(state: Any) -> None:
    found = there_and_back(state)
    assert found == state
    assert types_of(found) == types_of(state)


def test_rare_types() -> None:
    state = {
        "s": {1, 2},
        "c": Counter("ab"),
        "t": torch.bfloat16,
        "d": torch.device("cpu"),
        "n": torch.Size([2]),
    }
    assert there_and_back(state) == state
    assert there_and_back(float("-inf")) == float("-inf")


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.arange(24.0).reshape(2, 3, 4), id="plain"),
        pytest.param(
            torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last), id="strides"
        ),
        pytest.param(torch.arange(24.0)[::2], id="with gaps"),
        pytest.param(torch.ones(1).expand(5), id="expanded"),
        pytest.param(torch.tensor(3), id="without dimensions"),
        pytest.param(torch.empty(0, 3), id="empty"),
        pytest.param(torch.tensor([True, False]), id="bool"),
        pytest.param(torch.tensor([1.5, -2]).bfloat16(), id="bfloat16"),
        pytest.param(torch.tensor([1 + 2j]), id="complex"),
        pytest.param(torch.nn.Parameter(torch.ones(3)), id="parameter"),
    ],
)
def test_tensors(tensor: torch.Tensor) -> None:
    found = there_and_back({"first": torch.ones(3, dtype=torch.uint8), "list": [tensor]})["list"][0]
    assert_close(found, tensor.detach(), rtol=0, atol=0)
    assert found.stride() == torch.empty_like(tensor).stride()
    assert not found.requires_grad


def test_tied_weights_are_copied_once() -> None:
    """Each gets a tensor of its own again: the program ties them."""
    weight = torch.arange(1000.0)
    packed = Packed(
        {"embedding": weight, "head": weight.detach(), "part": weight[:500], "bias": torch.ones(2)}
    )
    assert packed.length < 8000
    state = {"embedding": weight, "head": weight.detach(), "part": weight[:500], "bias": torch.ones(2)}
    assert_close(there_and_back(state), state, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param({"a": [object()]}, "is a object", id="an object"),
        pytest.param(torch.eye(2).to_sparse(), "sparse", id="a sparse tensor"),
        pytest.param(
            {1: torch.ones(1), "1": torch.ones(1)}, "two tensors at 1", id="two keys that look alike"
        ),
    ],
)
def test_what_cannot_be_copied_is_refused(value: Any, message: str) -> None:
    with pytest.raises(DtjError, match=message):
        Packed(value)


def test_meta_tensor_is_taken_from_the_program() -> None:
    packed = Packed({"w": torch.empty(2, device="meta")})
    memory = memoryview(bytearray(packed.length))
    packed.fill(memory)
    own = torch.empty(2, device="meta")
    assert unpack(memory, {"w": own}.get)["w"] is own
    with pytest.raises(CheckpointError, match="w is sharded in another way"):
        unpack(memory, {"w": torch.ones(2)}.get)
