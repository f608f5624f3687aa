"""Micro-batches from host memory to the device of their rank."""

from collections import UserDict
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import torch


def queued_copy(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The tensor on a device, if possible without a wait for it.

    Only CUDA has read ordinary host memory when the call returns. Apple's GPUs read it later, when it may be
    freed and hold something else.
    """
    return tensor.to(device, dtype or tensor.dtype, non_blocking=device.type == "cuda")


class DeviceCopy:
    """Copies tensors to a device.

    To a GPU from pinned memory, on a stream of its own: while the kernels of the present step run, the next
    samples are copied. Only kernels that are launched after `Copying.result` wait for the copy.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def overlaps(self) -> bool:
        """A copy that is begun early costs no time later: the device copies while it computes."""
        return self._stream is not None

    def __call__(self, value: Any) -> Any:
        """The same structure on the device; a mapping of an unknown kind becomes a dict."""
        return self.begin(value).result()

    def begin(self, value: Any) -> "Copying":
        """Queue the copies of a structure of tensors, and return at once."""
        copied: list[torch.Tensor] = []

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            # What is not on the host is written by kernels of the present stream, which may still run.
            if self._stream is None or tensor.device.type != "cpu":
                return queued_copy(tensor, self._device)
            with torch.cuda.stream(self._stream):
                copied.append(tensor.pin_memory().to(self._device, non_blocking=True))
            return copied[-1]

        there = self._mapped(value, copy)
        return Copying(there, copied, self._stream.record_event() if copied else None)

    def _mapped(self, value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        if isinstance(value, torch.Tensor):
            return change(value)
        if isinstance(value, UserDict):  # e.g. a BatchEncoding of transformers: its items are attributes, too
            there = copy(value)
            there.data = self._mapped(value.data, change)
            return there
        if callable(getattr(value, "to", None)):  # a PackedSequence, a batch of graphs, a TensorDict
            return value.to(self._device)
        if isinstance(value, Mapping):
            return {key: self._mapped(item, change) for key, item in value.items()}
        if isinstance(value, list | tuple):
            changed = [self._mapped(item, change) for item in value]
            return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
        return value


class Copying:
    """Copies that are queued on a stream of their own; `done` is the point after them in it, None without."""

    def __init__(self, there: Any, copied: list[torch.Tensor], done: Any) -> None:
        self._there, self._copied, self._done = there, copied, done

    def result(self) -> Any:
        """The structure on the device; kernels that are launched from now on wait for the copies."""
        if self._done is not None:
            kernels = torch.cuda.current_stream(self._copied[0].device)
            kernels.wait_event(self._done)
            for tensor in self._copied:
                tensor.record_stream(kernels)  # else its memory would be used again before they have read it
        return self._there
