"""Operations of the model in a step. What --recompute repeats in backward is not counted: MFU, not HFU."""

import contextlib
from collections.abc import Iterator
from typing import Any

active: "Count | None" = None  # of the step that is being counted


class Count:
    """How many floating point operations a pass has done; `counter` is torch's FlopCounterMode."""

    def __init__(self, counter: Any) -> None:
        self._counter = counter
        self._repeated = 0

    @property
    def of_model(self) -> int:
        """Operations so far, without repeated ones."""
        return int(self._counter.get_total_flops()) - self._repeated

    def contexts(
        self,
    ) -> tuple[contextlib.AbstractContextManager[Any], contextlib.AbstractContextManager[Any]]:
        """For torch's checkpoint(context_fn=): the context of a forward, and that of its repetition."""
        return contextlib.nullcontext(), self._repetition()

    @contextlib.contextmanager
    def _repetition(self) -> Iterator[None]:
        before = self._counter.get_total_flops()
        try:
            yield
        finally:  # torch leaves it by an exception, as soon as all activations are there
            self._repeated += self._counter.get_total_flops() - before


@contextlib.contextmanager
def counting() -> Iterator[Count]:
    """Context that counts this rank's operations on tensors, also those of backward."""
    global active  # noqa: PLW0603 - checkpoint's contexts are needed deep in the model's forward
    # Rarely needed.
    from torch._subclasses.fake_tensor import FakeTensor  # noqa: PLC0415
    from torch.distributed.tensor import DTensor  # noqa: PLC0415
    from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode  # noqa: PLC0415

    class OfThisRank(_FlopCounterMode):  # type: ignore[no-untyped-call]
        """Of an operation on shards of several ranks, only that on this rank's own ones.

        The former is done by the latter, and by one on tensors without memory that finds out how its result
        is sharded.
        """

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(issubclass(each, DTensor) for each in types):
                return NotImplemented
            if any(issubclass(each, FakeTensor) for each in types):
                return func(*args, **(kwargs or {}))
            return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    counter = FlopCounterMode(display=False)
    with OfThisRank(counter):
        active = Count(counter)
        try:
            yield active
        finally:
            active = None
