"""Micro-batches from host memory to the device of their rank."""

from collections.abc import Callable, Mapping
from typing import Any

import torch


class DeviceCopy:
    """Copies tensors to a device.

    To a GPU from pinned memory, on a stream of its own: a rank runs ahead of its GPU, so the next samples are
    copied while the kernels of the present step run. Only kernels that are launched later wait for the copy.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, value: Any) -> Any:
        """The same structure on the device; a mapping becomes a dict."""
        return _mapped(value, self._copy)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._stream is None or tensor.device.type != "cpu":
            return tensor.to(self._device, non_blocking=True)
        with torch.cuda.stream(self._stream):
            there = tensor.pin_memory().to(self._device, non_blocking=True)
        kernels = torch.cuda.current_stream(self._device)
        kernels.wait_stream(self._stream)
        there.record_stream(kernels)  # else its memory would be used again before they have read it
        return there


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        changed = [_mapped(item, change) for item in value]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    return value
