"""Scores over a data set, each sample counted once: nothing is padded or repeated.

Either the mean of one value per sample, or what a metric of torchmetrics makes of all batches.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map_only

from dtj.data.feed import Feed
from dtj.errors import RecipeError
from dtj.parallel.layout import Layout
from dtj.parallel.strategy import Strategy
from dtj.ranks import exchange
from dtj.step.precision import Precision
from dtj.telemetry import heartbeat

# What the user's function returned for a micro-batch, the number of its samples, and whether it is a dummy.
Score = tuple[Any, int, bool]


class Metric(Protocol):
    """What is needed of a torchmetrics.Metric or MetricCollection."""

    def update(self, *args: Any, **kwargs: Any) -> Any: ...
    def compute(self) -> Any: ...
    def reset(self) -> None: ...
    def to(self, device: torch.device) -> Any: ...
    def modules(self) -> Iterable[nn.Module]: ...


def evaluate(
    score: Callable[[Any], Any],
    feed: Feed,
    metric: Metric | None = None,
    *,
    strategy: Strategy,
    precision: Precision,
    group: "dist.ProcessGroup | None",
    warn: Callable[[str], None] = lambda _: None,
) -> Any:
    """Mean score over one epoch of the feed, or what the metric makes of it; the same on every rank.

    warn  is called if the data set seems to be divided among the ranks already
    """
    if metric is not None and not hasattr(metric, "compute"):
        raise RecipeError(
            f"run.evaluate got metric={metric!r}, expected a metric of torchmetrics",
            fix="pass an object such as torchmetrics.F1Score(task='multiclass', num_classes=10)",
        )
    exchange.check_equal(feed.same_on_all_ranks("run.evaluate"), group=group)
    if group is not None and (found := feed.check_alike(partial(exchange.all_gather_number, group=group))):
        warn(found)
    scores = _scores(score, feed, precision)
    with strategy.evaluating(), torch.no_grad():
        if metric is None:
            return _mean(scores, strategy.device, group)
        return _of_metric(scores, metric, strategy, group)


def of_no_sample(metric: Metric | None) -> Any:
    """What takes the place of a result: NaN, or NaN by name for a collection of metrics."""
    return dict.fromkeys(metric, math.nan) if isinstance(metric, nn.ModuleDict) else math.nan


def _mean(scores: Iterable[Score], device: torch.device, group: "dist.ProcessGroup | None") -> float:
    """Mean of one value per sample; RecipeError if a score does not have one."""
    # bf16 and fp16 cannot add up many scores. Apple's GPUs have no float64.
    sum_type = torch.float32 if device.type == "mps" else torch.float64
    total = torch.zeros((), dtype=sum_type, device=device)
    count = 0
    for found, samples, is_dummy in scores:
        if not isinstance(found, torch.Tensor) or found.numel() != samples:
            given = (
                f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else f"type {type(found)}"
            )
            raise RecipeError(
                f"the score of {samples} samples has {given}",
                fix="return one value per sample, e.g. model(mb.x).argmax(1) == mb.y; or pass a metric",
            )
        if not is_dummy:
            total.add_(found.sum(dtype=sum_type).to(total.device))  # with --devices it may be on another one
            count += samples
    sums = torch.tensor([float(total), count], dtype=torch.float64)
    if group is not None:  # ranks that split one model count the same samples, which does not change the mean
        dist.all_reduce(sums, group=group)
    return float(sums[0] / sums[1])


def _of_metric(
    scores: Iterable[Score], metric: Metric, strategy: Strategy, group: "dist.ProcessGroup | None"
) -> Any:
    """What the metric computes of all samples.

    scores  the arguments of `metric.update`: tuples, dicts of keywords, or single values
    metric  is moved to the device and emptied; afterwards it holds this rank's samples
    Returns the result of `metric.compute`, with plain numbers for tensors of one element.
    """
    metric.to(strategy.device)
    metric.reset()
    for found, _, is_dummy in scores:
        if isinstance(found, Mapping) and not is_dummy:
            metric.update(**found)
        elif not is_dummy:
            metric.update(*(found if isinstance(found, tuple) else (found,)))
    with _merged_over_ranks(metric, strategy.layout, group):
        result = metric.compute()
    return tree_map_only(torch.Tensor, lambda x: x.item() if x.numel() == 1 else x, result)


def _scores(score: Callable[[Any], Any], feed: Feed, precision: Precision) -> Iterator[Score]:
    """The scores of one epoch.

    A rank without a sample in the last batch scores a dummy, which must not count: forward may be collective.
    """
    for batch in feed.epoch_once():
        heartbeat.mine.sign()
        for micro_batch in batch.micro_batches:
            with precision.autocast():
                found = score(batch.fetch(micro_batch))
            yield found, len(micro_batch.indices), not micro_batch.weight


@contextlib.contextmanager
def _merged_over_ranks(metric: Metric, layout: Layout, group: "dist.ProcessGroup | None") -> Iterator[None]:
    """Context: `metric.compute` merges the states of all ranks.

    By our group for agreements instead of torchmetrics' own collectives: so a rank that is lost meanwhile can
    be replaced, and ranks that split one model, and have the same samples, count once.
    """

    def gather(state: torch.Tensor, _group: Any = None, **_: Any) -> list[torch.Tensor]:
        assert group is not None  # else nothing is merged
        found = exchange.all_gather(state.cpu(), group=group)
        owners = {replace(layout, rank=rank).data_rank: rank for rank in reversed(range(len(found)))}
        states = [found[owners[data_rank]].to(state.device) for data_rank in sorted(owners)]
        # That of a rank without samples is empty, and of another type.
        return [each for each in states if each.numel()] or states

    # A collection or a wrapper has its metrics as children.
    metrics: list[Any] = [each for each in metric.modules() if hasattr(each, "dist_sync_fn")]
    before = [(each.dist_sync_fn, each.distributed_available_fn) for each in metrics]
    for each in metrics:
        each.dist_sync_fn, each.distributed_available_fn = gather, lambda: group is not None
    try:
        yield
    finally:
        for each, (sync, available) in zip(metrics, before, strict=True):
            each.dist_sync_fn, each.distributed_available_fn = sync, available
