"""One small all-reduce now and then, by which the ranks agree without ever waiting for it.

It starts at the end of step k and is read at the end of step k+1, so its latency hides behind a whole step.
It carries what ranks must do together (stop, finish, save, log) and the values to be logged: one message, of
fixed size, whatever is in it, so that a rank which logs more or less than the others cannot jam the run.

    step k    ... start
    step k+1  ... read                     every rank sees the same answer after the same step
    step k+n  ... start                    n, too, is part of the answer: about five messages a second

Why not every step: on CPUs the message costs up to a millisecond, and a step can be as short as that.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

# Values that one step can log; a fixed number keeps the message the same on all ranks.
SLOTS = 17
_FLAGS = 6
# A stop is noticed within this time and a step; so are the values of a line.
_INTERVAL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Message:
    """What one rank has to say; and what all know once they have met.

    stop, ..., broken  what any rank wants, or has found, counts for all
    interval           steps until the next message; rank 0's alone counts, the others say 0
    values             to be logged; then their means over the ranks that gave them
    """

    stop: bool = False
    finish: bool = False
    save: bool = False
    log: bool = False
    broken: bool = False
    interval: int = 0
    values: tuple[float, ...] = ()


def interval(steps: int, seconds: float) -> int:
    """Steps until the next message, when `steps` took so long: at least one."""
    return max(1, int(steps * _INTERVAL_S / seconds)) if seconds > 0 else 1


class Agreement:
    """At most one message is under way; `start` and `read` alternate."""

    def __init__(self, group: "dist.ProcessGroup | None") -> None:
        self._group = group
        self._sums: torch.Tensor | None = None
        self._work: dist.Work | None = None

    @property
    def is_under_way(self) -> bool:
        """Started, not read yet."""
        return self._sums is not None

    def start(self, mine: Message) -> None:
        """Send this rank's message; returns at once."""
        values = list(mine.values[:SLOTS])
        empty = [0.0] * (SLOTS - len(values))
        wishes = (mine.stop, mine.finish, mine.save, mine.log, mine.broken)
        flags = [*map(float, wishes), float(mine.interval)]
        counts = [1.0] * len(values) + empty
        self._sums = torch.tensor(flags + values + empty + counts, dtype=torch.float64)
        if self._group is not None:
            self._work = dist.all_reduce(self._sums, group=self._group, async_op=True)

    def read(self) -> Message | None:
        """The answer to the last `start`, None where there was none."""
        if self._sums is None:
            return None
        if self._work is not None:
            self._work.wait()
        sums = self._sums.tolist()
        self._sums, self._work = None, None
        values, counts = sums[_FLAGS : _FLAGS + SLOTS], sums[_FLAGS + SLOTS :]
        return Message(
            stop=sums[0] > 0,
            finish=sums[1] > 0,
            save=sums[2] > 0,
            log=sums[3] > 0,
            broken=sums[4] > 0,
            interval=max(1, int(sums[5])),
            values=tuple(v / c for v, c in zip(values, counts, strict=True) if c),
        )
