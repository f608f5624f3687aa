"""Operations of the model in a step. What --recompute repeats in backward is not counted: MFU, not HFU."""

import contextlib
from collections.abc import Iterator
from typing import Any

active: "Count | None" = None  # of the step that is being counted


class Count:
    """How many floating point operations a step has done; `mode` is torch's FlopCounterMode."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._repeated = 0

    @property
    def of_model(self) -> int:
        """Operations so far, without repeated ones."""
        return int(self._mode.get_total_flops()) - self._repeated

    def contexts(
        self,
    ) -> tuple[contextlib.AbstractContextManager[Any], contextlib.AbstractContextManager[Any]]:
        """For torch's checkpoint(context_fn=): the context of a forward, and that of its repetition."""
        return contextlib.nullcontext(), self._repetition()

    @contextlib.contextmanager
    def _repetition(self) -> Iterator[None]:
        before = self._mode.get_total_flops()
        try:
            yield
        finally:  # torch leaves it by an exception, as soon as all activations are there
            self._repeated += self._mode.get_total_flops() - before


@contextlib.contextmanager
def counting() -> Iterator[Count]:
    """Context that counts operations on tensors, also those of backward."""
    global active  # noqa: PLW0603 - checkpoint's contexts are needed deep in the model's forward
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - rarely needed

    with FlopCounterMode(display=False) as mode:
        active = Count(mode)
        try:
            yield active
        finally:
            active = None
