"""The order of calls when a micro-batch is copied to a GPU; torch's part is recorded, not run."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dtj.data.device_copy import DeviceCopy

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What torch was called for, in its order."""
    found: list[str] = []

    @contextlib.contextmanager
    def stream(chosen: Any) -> Iterator[None]:
        found.append(f"use the {chosen}")
        yield
        found.append("use the kernels' stream")

    def move(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
        found.append(f"to {device}, {'queued' if non_blocking else 'waiting'}")
        return tensor

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        found.append("pin")
        return tensor

    kernels = SimpleNamespace(wait_stream=lambda other: found.append(f"kernels wait for the {other}"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: "copies' stream")
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: kernels)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", move)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda _tensor, _stream: found.append("keep for kernels")
    )
    return found


def test_copy_to_a_gpu_is_from_pinned_memory_on_a_stream_of_its_own(calls: list[str]) -> None:
    value = {"x": torch.ones(2), "n": 3}
    assert DeviceCopy(GPU)(value) == value
    assert calls == [
        *("use the copies' stream", "pin", "to cuda:0, queued", "use the kernels' stream"),
        *("kernels wait for the copies' stream", "keep for kernels"),
    ]


def test_only_host_memory_is_copied_on_another_stream(calls: list[str]) -> None:
    """What is on a device was written by kernels of the present stream, which may still run."""
    DeviceCopy(GPU)(torch.ones(2, device="meta"))
    DeviceCopy(CPU)(torch.ones(2))
    assert calls == ["to cuda:0, queued", "to cpu, queued"]
