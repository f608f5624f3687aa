"""Find the first step whose loss was not finite, on the device, without waiting for it.

A loss that is NaN on one rank makes the averaged gradients NaN on all ranks, and one step later all losses:
only the earliest step names the rank where it started. The device's result is copied to the host when ranks
exchange a message (agreement.py) and read with the next one, so the stop comes some tenths of a second late.
Before a checkpoint is written it is read immediately.

Only losses are checked. Weights that become NaN in a step whose loss is finite are noticed one step later.
"""

import math

import torch
import torch.distributed as dist

from dtj.errors import DtjError

_NEVER = 2**62


class FiniteCheck:
    """Remembers this rank's first step with a loss that is not finite; `check` compares all ranks."""

    def __init__(self, device: torch.device) -> None:
        self._first = torch.full((), _NEVER, dtype=torch.int64, device=device)
        self._never = self._first.clone()
        self._seen = torch.full((), _NEVER, dtype=torch.int64, pin_memory=device.type == "cuda")

    def note(self, loss: torch.Tensor, step: int) -> None:
        """Note the loss, (), of a step. On an accelerator: three kernels, no synchronization."""
        if loss.device.type == "cpu":  # reading the value is cheaper than any kernel
            if not math.isfinite(loss.item()):
                self._first.clamp_(max=step)
            return
        bad = torch.where(loss.isfinite(), self._never, step)
        self._first = torch.minimum(self._first, bad)

    def has_seen_one(self) -> bool:
        """A loss was not finite when this was last called; also starts the next copy to the host."""
        seen = int(self._seen) != _NEVER
        self._seen.copy_(self._first, non_blocking=True)
        return seen

    def check(self, group: "dist.ProcessGroup | None", *, saved: int | None) -> None:
        """Raise DtjError on every rank if a loss of any rank was not finite.

        All ranks call this. It waits for the device.
        saved  step of the newest checkpoint, for the message
        """
        mine = torch.tensor([int(self._first)])
        firsts = [mine]
        if group is not None:
            firsts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
            dist.all_gather(firsts, mine, group=group)
        steps = [int(first) for first in firsts]
        step = min(steps)
        if step == _NEVER:
            return
        ranks = [str(rank) for rank, first in enumerate(steps) if first == step]
        named = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
        where = named if len(ranks) < len(steps) else "every rank"
        rest = f"the newest checkpoint is of step {saved}" if saved is not None else "nothing was saved"
        raise DtjError(
            f"the loss of step {step} is not finite on {where}; {rest}",
            fix="lower the learning rate, clip the gradients, check the samples of that step, or use bf16 "
            "if fp16 overflows",
        )
