"""A small asynchronous all-reduce by which the ranks agree on what to do together.

It starts at the end of step k and is read at the end of step k+1, so one step hides its latency; if steps are
long, it is read at the end of step k. It carries
what all ranks must do after the same step: stop, finish, save, log.

    step k    ... start
    step k+1  ... read                     every rank reads the same result after the same step
    step k+n  ... start                    n is part of the result: about five messages a second

Not every step: on CPUs the message costs up to a millisecond, and a step can be as short as that.

The values to log have any number and length: they are gathered after a step on which all ranks agreed, about
once a second.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist

from dtj.ranks import waits

# Target time between messages. If steps are short, a stop takes effect about this long after the signal.
_INTERVAL_S = 0.2
# If steps take this long, a message is read where it was started: a stop takes effect at the end of the
# current one. Then every rank waits twice a step for the slowest, which costs a few milliseconds.
_LONG_STEP_S = 1.0


class Message(NamedTuple):
    """What one rank sends, and what every rank receives.

    stop        received as True if any rank sent True; so are the other flags but `copy`
    finish      end training after this step
    save        save a checkpoint
    copy        copy the state to memory; received as True only if every rank sent True
    log         log the step after which this is read, and deliver the lines of earlier ones
    not_finite  a loss was NaN or infinite
    interval    steps until the next message, 0: steps are so long that it is read after the step it was
                started after; rank 0 decides, the others send 0
    """

    stop: bool = False
    finish: bool = False
    save: bool = False
    copy: bool = False
    log: bool = False
    not_finite: bool = False
    interval: int = 0


def interval(steps: int, seconds: float) -> int:
    """Steps until the next message, given that the last `steps` took `seconds`; see Message."""
    if steps == 0 or seconds <= 0:
        return 1
    a_step_s = seconds / steps
    return 0 if a_step_s >= _LONG_STEP_S else max(1, int(_INTERVAL_S / a_step_s))


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
        self._sums = torch.tensor(mine, dtype=torch.float64)
        if self._group is not None:
            self._work = dist.all_reduce(self._sums, group=self._group, async_op=True)

    def read(self) -> Message | None:
        """The result of the last `start`, or None if no message is in flight."""
        if self._sums is None:
            return None
        if self._work is not None:
            waits.wait(self._work, self._sums.device)
        sums = Message(*self._sums.tolist())
        ranks = dist.get_world_size(self._group) if self._group is not None else 1
        self._sums, self._work = None, None
        is_set_anywhere = Message(*(number > 0 for number in sums))
        return is_set_anywhere._replace(copy=sums.copy == ranks, interval=int(sums.interval))


def gather(text: str, group: "dist.ProcessGroup | None") -> list[str]:
    """On rank 0 the texts of all ranks, which may end in spaces; on other ranks an empty list. Collective."""
    if group is None:
        return [text]
    mine = text.encode()
    longest = torch.tensor(len(mine))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=group)
    padded = torch.frombuffer(bytearray(mine.ljust(max(1, int(longest)))), dtype=torch.uint8)
    is_first = dist.get_rank(group) == 0
    found = [torch.empty_like(padded) for _ in range(dist.get_world_size(group))] if is_first else None
    dist.gather(padded, found, group=group, group_dst=0)
    return [bytes(each.tolist()).decode() for each in found or ()]
