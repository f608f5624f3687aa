"""Trains with and without copies of the state in memory, in blocks that take turns.

A block with copies begins after a copy and lasts until the next ones are made, as without any flag. As many
steps without copies follow, after some that are not counted while the last copy is sent.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import dtj
from dtj.copies import slot
from dtj.models.gpt import GPT, Shape
from tests.bench.ranks import tell

BLOCKS, COPIES, WARM_UP, UNCOUNTED = 4, 2, 2, 4
# 4.9 million parameters: 59 MB with the two moments of AdamW.
SHAPE = Shape(vocabulary=512, context=64, layers=6, heads=8, width=256)


def main() -> None:
    run = dtj.init(seed=1)
    model = run.parallel(GPT(SHAPE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, SHAPE.vocabulary, (4096, SHAPE.context + 1))
    data = run.data(TensorDataset(tokens[:, :-1], tokens[:, 1:]), global_batch=8)
    run.state(model=model, optimizer=optimizer, data=data)
    turns = Turns(run)
    for batch in run.steps(10**6):
        if next(turns.each_step, None) is None:
            run.finish()
        run.backward(lambda mb: cross_entropy(model(mb[0]).flatten(0, 1), mb[1].flatten()), batch)
        optimizer.step()
        optimizer.zero_grad()
    lengths = torch.zeros(run.size, dtype=torch.int64)
    lengths[run.rank] = turns.bytes_of_copy
    torch.distributed.all_reduce(lengths)
    if os.environ["LOCAL_RANK"] == "0":
        tell(
            on=turns.on,
            off=turns.off,
            between=turns.between,
            stopped=turns.stopped,
            keeper=turns.keeper,
            lengths=lengths.tolist(),
            held=held(),
        )


class Turns:
    """Switches copies on and off. `each_step` yields at the begin of each step, until all blocks are done.

    on, off  seconds a step, by block
    between  seconds from a copy to the next, by block
    stopped  part of the block with copies in which this rank made them, or waited for others to do so
    keeper   part of a processor that this pod's keeper of copies used during that block
    """

    def __init__(self, run: dtj.Run) -> None:
        self.on: list[float] = []
        self.off: list[float] = []
        self.between: list[float] = []
        self.stopped: list[float] = []
        self.keeper: list[float] = []
        self.each_step = self._each_step()
        self._slots = slot.mine()
        self._copies = run._copies
        self._keepers = keepers(run)
        self._stopped_s = 0.0
        copy = self._copies.copy

        def timed(step: int, group: torch.distributed.ProcessGroup | None, *, began: float) -> None:
            copy(step, group, began=began)
            self._stopped_s += time.monotonic() - began

        self._copies.copy = timed  # type: ignore[method-assign]

    @property
    def _keeper_s(self) -> float:
        """Seconds of processors that this pod's keeper has used."""
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self._keepers]
        ticks = sum(int(each[11]) + int(each[12]) for each in fields)  # user, system
        return ticks / os.sysconf("SC_CLK_TCK")

    @property
    def bytes_of_copy(self) -> int:
        """The length of this rank's newest copy."""
        header = slot.by_age(self._slots)[-1].header()
        return header.length if header else 0

    def _each_step(self) -> Iterator[bool]:
        yield from self._until_copied(WARM_UP)
        for _ in range(BLOCKS):
            yield from self._until_copied(1)
            began, steps = time.perf_counter(), 0
            stopped_s, keeper_s = self._stopped_s, self._keeper_s
            for _ in self._until_copied(COPIES):
                steps += 1
                yield True
            seconds = time.perf_counter() - began
            self.on.append(seconds / steps)
            self.between.append(seconds / COPIES)
            self.stopped.append((self._stopped_s - stopped_s) / seconds)
            self.keeper.append((self._keeper_s - keeper_s) / seconds)
            self._copies.is_needless = lambda: True
            yield from [True] * UNCOUNTED
            began = time.perf_counter()
            yield from [True] * steps
            self.off.append((time.perf_counter() - began) / steps)
            self._copies.is_needless = lambda: False

    def _until_copied(self, count: int) -> Iterator[bool]:
        """Yield until so many copies have been made: after the same step on every rank."""
        for _ in range(count):
            before = self._newest()
            while self._newest() == before:
                yield True

    def _newest(self) -> int:
        return max(label.step if (label := each.label()) else 0 for each in self._slots)


def children() -> list[int]:
    """Processes of this pod's agent: its ranks and its keeper of copies."""
    agent = os.getppid()
    return [int(pid) for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]


def keepers(run: dtj.Run) -> list[int]:
    """Children of this pod's agent, without the ranks."""
    pids = torch.zeros(run.size, dtype=torch.int64)
    pids[run.rank] = os.getpid()
    torch.distributed.all_reduce(pids)
    return [pid for pid in children() if pid not in pids.tolist()]


def held() -> int:
    """Bytes of the copies in this pod: of its own ranks, and those that it keeps for the other pod."""
    files = [each for child in [os.getppid(), *children()] for each in Path(f"/proc/{child}/fd").iterdir()]
    blocks = {}
    for each in files:
        try:
            if "memfd:dtj-rank-" in str(each.readlink()):
                found = each.stat()
                blocks[found.st_ino] = found.st_blocks
        except OSError:  # closed meanwhile
            continue
    return 512 * sum(blocks.values())


if __name__ == "__main__":
    main()
