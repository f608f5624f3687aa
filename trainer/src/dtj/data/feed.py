"""Data set -> global batches -> this rank's micro-batches, on the device.

Before it stand `indexed.py` and `stream.py`, which know where samples come from; after it `step/backward.py`.
The state of a feed is one position, which means the same in a world of another size.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dtj.data.cut import Cut, Part, Share
from dtj.data.indexed import Indexed
from dtj.data.load import Loader, to_device
from dtj.data.stream import Streamed, is_stream
from dtj.errors import RecipeError


class Source(Protocol):
    """Where the samples of a position come from."""

    @property
    def steps_per_epoch(self) -> int | None: ...  # None where nobody knows
    def epoch(self, position: int) -> int: ...
    def at(self, position: int) -> Share: ...
    def load(self, share: Share, part: Part) -> Any: ...
    def after(self, share: Share) -> int: ...
    def close(self) -> None: ...
    def state(self, position: int) -> dict[str, int]: ...
    def position(self, state: dict[str, int]) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One global batch as seen from one rank; samples are fetched while it is iterated.

    samples     in the whole global batch, over all ranks (the last one of an epoch may be smaller)
    epoch       that these samples belong to, from 0
    ends_epoch  True for the last batch of an epoch
    """

    samples: int
    epoch: int
    ends_epoch: bool
    parts: Sequence[Part]
    fetch: Callable[[Part], Any]

    def __iter__(self) -> Iterator[Any]:
        """This rank's micro-batches, on its device."""
        return (self.fetch(part) for part in self.parts)


class Feed:
    """All global batches of a data set, epoch after epoch.

    position  of the next batch; only the source knows what it counts
    consumed  samples, over all ranks, since this process began
    waited_s  seconds that this rank has waited for samples
    """

    def __init__(self, source: Source, *, device: torch.device) -> None:
        self.position = 0
        self.consumed = 0
        self.waited_s = 0.0
        self._source = source
        self._device = device
        self._share: Share | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch, the ragged last one included; RecipeError where nobody knows."""
        steps = self._source.steps_per_epoch
        if steps is None:
            raise RecipeError(
                "the data set is a stream without length: nobody knows how many steps an epoch has",
                fix="count in steps (run.steps(1000), Recipe(steps=1000)), or give the stream __len__",
            )
        return steps

    @property
    def epoch(self) -> int:
        """Epoch of the next batch, from 0."""
        return self._source.epoch(self.position)

    def batch(self) -> Batch:
        """The batch at the present position; asking twice gives the same one."""
        share = self._share = self._timed(self._source.at, self.position)
        return Batch(
            samples=share.samples,
            epoch=share.epoch,
            ends_epoch=share.ends_epoch,
            parts=share.parts,
            fetch=lambda part: to_device(self._timed(self._source.load, share, part), self._device),
        )

    def advance(self) -> None:
        """The step on the present batch is done; its samples do not come again in this epoch."""
        assert self._share is not None  # `batch` gave it
        self.position = self._source.after(self._share)
        self.consumed += self._share.samples

    def epoch_once(self) -> Iterator[Batch]:
        """The batches of the present epoch, from the present position on."""
        while True:
            batch = self.batch()
            yield batch
            self.advance()
            if batch.ends_epoch:
                return

    def close(self) -> None:
        """Let the workers go, if there are any."""
        self._source.close()

    def state_dict(self) -> dict[str, int]:
        """The position, and what it would be meaningless without."""
        return self._source.state(self.position)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Raise RecipeError where the data is not what the position was counted in."""
        self.position = self._source.position(state)

    def _timed(self, act: Callable[..., Any], *given: Any) -> Any:
        began = time.perf_counter()
        try:
            return act(*given)
        finally:
            self.waited_s += time.perf_counter() - began


def feed(
    dataset: Any,
    *,
    global_batch: int,
    cut: Cut,
    loader: Loader,
    seed: int = 0,
    shuffle: bool = False,
    once: bool = False,
) -> Feed:
    """A feed of a map-style data set or a stream; RecipeError where it is neither.

    shuffle  anew in each epoch; a stream keeps its own order
    once     nothing is read beyond the end of an epoch
    """
    if global_batch < 1:
        raise RecipeError(
            f"global_batch is {global_batch}, expected at least 1",
            fix="give the samples of one step, over all ranks",
        )
    how: dict[str, Any] = {"global_batch": global_batch, "cut": cut, "seed": seed, "once": once}
    if is_stream(dataset):
        return Feed(Streamed(dataset, loader=loader, **how), device=loader.device)
    return Feed(Indexed(dataset, shuffle=shuffle, loader=loader, **how), device=loader.device)
