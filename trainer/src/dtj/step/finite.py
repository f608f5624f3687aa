"""Find the first step whose loss was not finite, on the device, without waiting for it.

A loss that is NaN on one rank makes the averaged gradients NaN on all ranks, and one step later all losses:
only the earliest step names the rank where it started. The device's result is copied to the host when ranks
exchange a message (agreement.py) and read with the next one, so the stop comes some tenths of a second late.
Before a checkpoint is written it is read immediately.

A step whose loss is finite can have a gradient that is not, and then the optimizer spoils the weights. So the
weights are checked, too, before each checkpoint: a run that loads such weights could never continue.
"""

import math
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from dtj.errors import DtjError
from dtj.parallel.strategy import local_part
from dtj.ranks import exchange

_NEVER = 2**62


class FiniteCheck:
    """Remembers this rank's first step with a loss that is not finite; `check` compares all ranks."""

    def __init__(self, device: torch.device) -> None:
        self._is_on_cpu = device.type == "cpu"
        self._unread: list[tuple[torch.Tensor, int]] = []
        self._first = torch.full((), _NEVER, dtype=torch.int64, device=device)
        self._never = self._first.clone()
        self._seen = torch.full((), _NEVER, dtype=torch.int64, pin_memory=device.type == "cuda")

    def note(self, loss: torch.Tensor, step: int) -> None:
        """Note the loss, (), of a step. On an accelerator: three kernels, no synchronization."""
        if self._is_on_cpu:
            # Its value is read later with those of other steps: then the code is in the caches.
            self._unread.append((loss, step))
            return
        bad = torch.where(loss.isfinite(), self._never, step)
        self._first = torch.minimum(self._first, bad)

    def has_seen_one(self) -> bool:
        """A loss was not finite when this was last called; also starts the next copy to the host."""
        self._read()
        seen = int(self._seen) != _NEVER
        self._seen.copy_(self._first, non_blocking=True)
        return seen

    def check(
        self,
        group: "dist.ProcessGroup | None",
        *,
        saved: int | None,
        step: int,
        weights: Iterable[nn.Parameter] = (),
    ) -> None:
        """Raise DtjError on every rank if a loss or weight of any rank was not finite.

        All ranks call this. It waits for the device.
        saved    step of the newest checkpoint, for the message; that of rank 0 counts, which writes
        step     the present one
        weights  to check as well
        """
        self._read()
        mine = [int(self._first), are_finite(weights), -1 if saved is None else saved]
        of_all = exchange.all_gather_numbers(mine, group=group)
        first, saved = min(found for found, *_ in of_all), of_all[0][2]
        if first != _NEVER:
            what, where = f"the loss of step {first} is", _named([found == first for found, *_ in of_all])
        elif not all(is_finite for _, is_finite, _ in of_all):
            what = f"the weights after step {step} are"
            where = _named([not is_finite for _, is_finite, _ in of_all])
        else:
            return
        rest = f"the newest checkpoint is of step {saved}" if saved >= 0 else "nothing was saved"
        raise DtjError(
            f"{what} not finite on {where}; {rest}",
            fix="lower the learning rate, clip the gradients, check the samples of that step, or use bf16 "
            "if fp16 overflows",
        )

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        for loss, step in unread:
            if not math.isfinite(loss.item()):
                self._first.clamp_(max=step)
                return


def are_finite(weights: Iterable[nn.Parameter]) -> bool:
    """True if no trained weight is NaN or infinite; of sharded ones, this rank's shards. Waits.

    Frozen ones stay as they are, and may be of a type that has no norm: quantized ones are integers.
    """
    trained = (w for w in weights if w.requires_grad and not w.is_meta)
    shards = [shard for w in trained if (shard := local_part(w.detach())).numel()]
    # A norm is fast, unlike maxima or `isfinite`, but that of large weights can overflow.
    is_sure = bool(nn.utils.get_total_norm(shards).isfinite())
    return is_sure or all(bool(shard.isfinite().all()) for shard in shards)


def _named(is_bad: Sequence[bool]) -> str:
    """The ranks for which it is true, in words."""
    if all(is_bad):
        return "every rank"
    numbers = [str(rank) for rank, bad in enumerate(is_bad) if bad]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
