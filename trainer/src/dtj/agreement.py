"""A small asynchronous all-reduce by which the ranks agree on what to do together.

It starts at the end of step k and is read at the end of step k+1, so one step hides its latency. It carries
what all ranks must do after the same step (stop, finish, save, log) and the values to log. The message has a
fixed size, so a rank that logs more or fewer values than the others cannot block the run. Values are averaged
by position: every rank has to log the same names in the same order.

    step k    ... start
    step k+1  ... read                     every rank reads the same result after the same step
    step k+n  ... start                    n is part of the result: about five messages a second

Not every step: on CPUs the message costs up to a millisecond, and a step can be as short as that.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

# Most values that one step can log; fixed, so that the message has the same size on all ranks.
SLOTS = 17
_FLAGS = 6
# Target time between messages. If steps are short, a stop takes effect about this long after the signal. If
# steps are longer than this, it takes up to two steps: the current one ends with a message, which is read at
# the end of the next one.
_INTERVAL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Message:
    """What one rank sends, and what every rank receives.

    stop        received as True if any rank sent True; so are the other flags
    finish      end training after this step
    save        save a checkpoint
    log         log the next step
    not_finite  a loss was NaN or infinite
    interval    steps until the next message; rank 0 decides, the others send 0
    values      to log; received as the means over the ranks that sent them
    """

    stop: bool = False
    finish: bool = False
    save: bool = False
    log: bool = False
    not_finite: bool = False
    interval: int = 0
    values: tuple[float, ...] = ()


def interval(steps: int, seconds: float) -> int:
    """Steps until the next message, given that the last `steps` took `seconds`: at least one."""
    return max(1, int(steps * _INTERVAL_S / seconds)) if seconds > 0 else 1


class Agreement:
    """At most one message is in flight; `start` and `read` alternate."""

    def __init__(self, group: "dist.ProcessGroup | None") -> None:
        self._group = group
        self._sums: torch.Tensor | None = None
        self._work: dist.Work | None = None

    @property
    def is_pending(self) -> bool:
        """A message was started and not read yet."""
        return self._sums is not None

    def start(self, mine: Message) -> None:
        """Start sending this rank's message; does not block."""
        values = list(mine.values[:SLOTS])
        empty = [0.0] * (SLOTS - len(values))
        requests = (mine.stop, mine.finish, mine.save, mine.log, mine.not_finite)
        flags = [*map(float, requests), float(mine.interval)]
        counts = [1.0] * len(values) + empty
        self._sums = torch.tensor(flags + values + empty + counts, dtype=torch.float64)
        if self._group is not None:
            self._work = dist.all_reduce(self._sums, group=self._group, async_op=True)

    def read(self) -> Message | None:
        """The result of the last `start`, or None if no message is in flight."""
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
            not_finite=sums[4] > 0,
            interval=max(1, int(sums[5])),
            values=tuple(v / c for v, c in zip(values, counts, strict=True) if c),
        )
