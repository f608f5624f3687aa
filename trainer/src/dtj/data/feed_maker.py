"""Makes the feeds of a run: of a data set, of a loader of the user's own, of an evaluation."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from dtj.data.feed import Feed
from dtj.data.indexed import Indexed
from dtj.data.loader import Collate, Loader
from dtj.data.source import Batching
from dtj.data.splitter import Splitter
from dtj.data.stream import Streamed, is_stream
from dtj.data.user_loader import UserLoader
from dtj.errors import RecipeError, whole
from dtj.settings import Settings

# Samples per forward pass of a rank in an evaluation, in a run without data.
_EVALUATED = 256


@dataclass(frozen=True, kw_only=True)
class FeedMaker:
    """Makes feeds as one rank sees them.

    splitter  of a training step
    parallel  the value of --parallel, for errors
    """

    settings: Settings
    splitter: Splitter
    device: torch.device
    seed: int
    parallel: str

    def of_dataset(
        self, dataset: Any, *, collate: Collate, equal_shares: bool, tokens: int | None, **how: Any
    ) -> Feed:
        """See Run.data. how: as of `feed`."""
        splitter = replace(self.splitter, equal_shares=equal_shares)
        loader = self._loader(collate)
        found = feed(dataset, splitter=splitter, loader=loader, seed=self.seed, **how)
        found.tokens = tokens
        return found

    def of_loader(self, loader: Any, *, accumulate: int, tokens: int | None) -> Feed:
        """See Run.loader. RecipeError if the strategy needs batches of another size."""
        splitter = self.splitter
        if splitter.micro_batch or splitter.pipeline_micro_batches:
            flag = "--micro-batch" if splitter.micro_batch else f"--parallel {self.parallel}"
            raise RecipeError(
                f"{flag} cannot divide the batches of run.loader, whose size the loader decides",
                fix="leave it out and use run.loader(..., accumulate=N) with smaller batches, or run.data",
            )
        rank, size = splitter.rank, splitter.size
        source = UserLoader(loader, rank=rank, size=size, seed=self.seed, accumulate=accumulate)
        samples = accumulate * size * (source.batch_size or 1)
        return Feed(source, device=self.device, global_batch=samples, tokens=tokens)

    def of_evaluation(self, dataset: Any, *, batch: int | None, collate: Collate, training: Feed) -> Feed:
        """One pass over a data set, in order. batch: see Run.evaluate; training: the feed of the steps."""
        ranks = self.splitter.size
        as_trained = -(-training.global_batch // ranks) if training.global_batch else _EVALUATED
        splitter = Splitter(rank=self.splitter.rank, size=ranks)
        if batch is not None:
            batch = whole(batch, "batch is", least=1, fix="set it to the samples of a forward pass of a rank")
        samples = ranks * (batch or self.settings.micro_batch or as_trained)
        loader = self._loader(collate)
        return feed(dataset, global_batch=samples, splitter=splitter, loader=loader, once=True)

    def _loader(self, collate: Collate) -> Loader:
        settings = self.settings
        return Loader(
            collate=collate, device=self.device, workers=settings.workers, start=settings.worker_start
        )


def feed(
    dataset: Any,
    *,
    global_batch: int,
    splitter: Splitter,
    loader: Loader,
    seed: int = 0,
    shuffle: bool = False,
    once: bool = False,
    drop_last: bool = False,
) -> Feed:
    """A feed of a map-style dataset or a stream; RecipeError if it is neither.

    shuffle  in another order in each epoch; a stream keeps its own order
    For the others see Batching.
    """
    fix = "set it to the number of samples of one step, over all ranks"
    global_batch = whole(global_batch, "global_batch is", least=1, fix=fix)
    equal_shares = splitter.equal_shares
    if equal_shares and global_batch % splitter.size:
        raise RecipeError(
            f"global_batch is {global_batch}, which {splitter.size} ranks cannot share equally",
            fix=f"use {max(1, global_batch // splitter.size) * splitter.size}, or leave equal_shares out",
        )
    if isinstance(dataset, DataLoader):
        raise RecipeError(
            "the data set is a DataLoader, which yields batches, not samples",
            fix="pass its data set: run.evaluate(score, loader.dataset, collate=loader.collate_fn)"
            if once
            else "pass it to run.loader, or its data set to run.data: run.data(loader.dataset, "
            "global_batch=..., collate=loader.collate_fn)",
        )
    how = Batching(
        global_batch=global_batch,
        splitter=splitter,
        loader=loader,
        seed=seed,
        drop_last=drop_last or equal_shares,
        once=once,
    )
    source = Streamed(dataset, how) if is_stream(dataset) else Indexed(dataset, how, shuffle=shuffle)
    return Feed(source, device=loader.device, equal_shares=equal_shares, global_batch=global_batch)


def check_equal_shares(models: Iterable[nn.Module], feed: Feed, *, ranks: int) -> None:
    """RecipeError if a model gathers the samples of all ranks, which may have different numbers of them."""
    gathers = any(isinstance(module, nn.SyncBatchNorm) for model in models for module in model.modules())
    if gathers and ranks > 1 and not feed.equal_shares:
        raise RecipeError(
            "the model has a SyncBatchNorm, which hangs if ranks have different numbers of micro-batches",
            fix="use run.data(..., equal_shares=True)",
        )
