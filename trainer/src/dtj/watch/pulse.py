"""One small all-reduce a step, by which the ranks agree without ever waiting for it.

It starts at the end of step k and is read at the end of step k+1, so its latency hides behind a whole step.
It carries what ranks must do together (stop, save, log) and the values to be logged: one message, of fixed
size, whatever is in it, so that a rank which logs more or less than the others cannot jam the run.

    step k    ... start(k)
    step k+1  ... read(k), start(k+1)      every rank sees the same answer after the same step
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

# Values that one step can log; a fixed number keeps the message the same on all ranks.
SLOTS = 16
_FLAGS = 3


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What one rank wants; any rank's wish counts for all."""

    stop: bool = False
    save: bool = False
    log: bool = False
    values: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What all ranks know now. `values` are means over the ranks that gave them."""

    stop: bool = False
    save: bool = False
    log: bool = False
    values: tuple[float, ...] = ()


class Pulse:
    """At most one message is under way; `start` and `read` alternate."""

    def __init__(self, group: "dist.ProcessGroup | None") -> None:
        self._group = group
        self._message: torch.Tensor | None = None
        self._work: dist.Work | None = None

    def start(self, wishes: Wishes) -> None:
        """Send this rank's wishes; returns at once."""
        values = list(wishes.values[:SLOTS])
        empty = [0.0] * (SLOTS - len(values))
        flags = [float(wishes.stop), float(wishes.save), float(wishes.log)]
        counts = [1.0] * len(values) + empty
        self._message = torch.tensor(flags + values + empty + counts, dtype=torch.float64)
        if self._group is not None:
            self._work = dist.all_reduce(self._message, group=self._group, async_op=True)

    def read(self) -> Agreement | None:
        """The answer to the last `start`, None where there was none."""
        if self._message is None:
            return None
        if self._work is not None:
            self._work.wait()
        sums = self._message.tolist()
        self._message, self._work = None, None
        values, counts = sums[_FLAGS : _FLAGS + SLOTS], sums[_FLAGS + SLOTS :]
        return Agreement(
            stop=sums[0] > 0,
            save=sums[1] > 0,
            log=sums[2] > 0,
            values=tuple(v / c for v, c in zip(values, counts, strict=True) if c),
        )
