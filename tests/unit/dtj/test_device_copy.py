"""The order of calls when micro-batches are copied to a GPU; torch's part is recorded, not run."""

import contextlib
from collections import UserDict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from dtj.data.device_copy import DeviceCopy
from dtj.data.feed import Feed
from tests.unit.dtj.feeds import feed

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What torch was called for, in its order."""
    found: list[str] = []

    @contextlib.contextmanager
    def stream(chosen: Any) -> Iterator[None]:
        found.append(f"use the {chosen.name}")
        yield
        found.append("use the kernels' stream")

    def move(tensor: torch.Tensor, device: torch.device, *_: Any, non_blocking: bool) -> torch.Tensor:
        found.append(f"to {device}, {'queued' if non_blocking else 'waiting'}")
        return tensor

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        found.append("pin")
        return tensor

    def mark() -> str:
        found.append("mark the end of the copies")
        return "end of the copies"

    kernels = SimpleNamespace(wait_event=lambda event: found.append(f"kernels wait for the {event}"))
    copies = SimpleNamespace(name="copies' stream", record_event=mark)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: copies)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: kernels)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", move)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda _tensor, _stream: found.append("keep for kernels")
    )
    return found


BEGIN = (
    *("use the copies' stream", "pin", "to cuda:0, queued", "use the kernels' stream"),
    "mark the end of the copies",
)
RESULT = ("kernels wait for the end of the copies", "keep for kernels")


def test_copy_to_a_gpu_is_from_pinned_memory_on_a_stream_of_its_own(calls: list[str]) -> None:
    value = {"x": torch.ones(2), "n": 3}
    assert DeviceCopy(GPU)(value) == value
    assert calls == [*BEGIN, *RESULT]


def test_only_host_memory_is_copied_on_another_stream(calls: list[str]) -> None:
    """What is on a device was written by kernels of the present stream, which may still run."""
    DeviceCopy(GPU)(torch.ones(2, device="meta"))
    DeviceCopy(CPU)(torch.ones(2))
    assert calls == ["to cuda:0, queued", "to cpu, waiting"]


def test_copy_to_a_gpu_of_apple_has_ended_before_its_source_is_freed(calls: list[str]) -> None:
    DeviceCopy(torch.device("mps"))({"x": torch.ones(2)})
    assert calls == ["to mps, waiting"]


def test_batch_that_can_move_itself_does() -> None:
    """The sizes of a PackedSequence must stay on the CPU; a batch of graphs is not a container of tensors."""
    packed = DeviceCopy(torch.device("meta"))(pack_sequence([torch.ones(2), torch.ones(1)]))
    assert (packed.data.device.type, packed.batch_sizes.device.type) == ("meta", "cpu")
    graphs = SimpleNamespace(to=lambda device: f"graphs on {device}")
    assert DeviceCopy(CPU)((graphs, 1)) == ("graphs on cpu", 1)


class Encoded(UserDict[str, Any]):
    """As BatchEncoding of transformers: its items are attributes, and its `to` moves only plain tensors."""

    def __getattr__(self, name: str) -> Any:
        return self.data[name]

    def to(self, device: torch.device) -> "Encoded":
        raise AssertionError("not from pinned memory")


class Moving(dict[str, torch.Tensor]):
    """As a TensorDict: the device is one of its attributes."""

    def to(self, device: torch.device) -> "Moving":
        return Moving({key: value.to(device) for key, value in self.items()})


def test_mapping_that_is_more_than_a_dict_keeps_its_type() -> None:
    copied = DeviceCopy(torch.device("meta"))
    encoded = Encoded(ids=torch.ones(2), parts=[torch.ones(1)])
    there = copied(encoded)
    assert (type(there), there.ids.device.type, there.parts[0].device.type) == (Encoded, "meta", "meta")
    assert encoded.ids.device.type == "cpu"
    moved = copied(Moving(x=torch.ones(2)))
    assert (type(moved), moved["x"].device.type) == (Moving, "meta")


class Recorded:
    """Ten samples; notes which of them are loaded. `bad`: the one that cannot be."""

    def __init__(self, calls: list[str], bad: int = -1) -> None:
        self._calls, self._bad = calls, bad

    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> int:
        if number == self._bad:
            raise ValueError(f"sample {number} is damaged")
        self._calls.append(f"load {number}")
        return number


def gpu_feed(calls: list[str], *, bad: int = -1, micro: int | None = None) -> Feed:
    return feed(data=Recorded(calls, bad), batch=2, micro=micro, shuffle=False, device=GPU)


def test_next_batch_is_loaded_and_its_copy_begun_before_it_is_wanted(calls: list[str]) -> None:
    f = gpu_feed(calls)
    f.batch()
    f.advance()
    f.look_ahead()
    assert calls == ["load 2", "load 3", *BEGIN]
    calls.clear()
    (data,) = f.batch()
    assert data.tolist() == [2, 3]
    assert calls == [*RESULT]


def test_only_the_first_micro_batch_takes_memory_ahead(calls: list[str]) -> None:
    f = gpu_feed(calls, micro=1)
    f.look_ahead()
    assert calls == ["load 0", *BEGIN]
    assert [each.tolist() for each in f.batch()] == [[0], [1]]


def test_a_pass_that_is_repeated_gets_a_new_copy(calls: list[str]) -> None:
    f = gpu_feed(calls)
    f.look_ahead()
    batch = f.batch()
    (micro_batch,) = batch.micro_batches
    batch.fetch(micro_batch)
    calls.clear()
    assert batch.fetch(micro_batch).tolist() == [0, 1]
    assert calls == ["load 0", "load 1", *BEGIN, *RESULT]


def test_a_batch_that_is_not_trained_on_does_not_count(calls: list[str]) -> None:
    f = gpu_feed(calls)
    f.batch()
    f.advance()
    before = f.state_dict(), f.consumed, f.epoch
    f.look_ahead()
    assert (f.state_dict(), f.consumed, f.epoch) == before


def test_what_was_loaded_ahead_is_dropped_if_the_position_changes(calls: list[str]) -> None:
    f = gpu_feed(calls)
    f.look_ahead()
    f.position = 4
    (data,) = f.batch()
    assert data.tolist() == [4, 5]


def test_the_first_batch_of_the_next_epoch_is_loaded_ahead(calls: list[str]) -> None:
    f = gpu_feed(calls)
    f.position = 8
    assert f.batch().ends_epoch
    f.advance()
    f.look_ahead()
    assert calls == ["load 0", "load 1", *BEGIN]
    assert f.batch().epoch == 1


def test_error_of_a_sample_is_raised_once_its_batch_is_wanted(calls: list[str]) -> None:
    f = gpu_feed(calls, bad=1)
    f.look_ahead()
    with pytest.raises(ValueError, match="sample 1 is damaged"):
        f.batch()


def test_a_cpu_loads_nothing_ahead(calls: list[str]) -> None:
    f = feed(data=Recorded(calls), batch=2)
    f.look_ahead()
    assert calls == []
