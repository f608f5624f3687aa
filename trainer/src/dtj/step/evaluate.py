"""The mean of a score over a data set, each sample counted once: nothing is padded or repeated."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from dtj.data.feed import Feed
from dtj.errors import RecipeError
from dtj.parallel.strategy import Strategy
from dtj.step.precision import Precision
from dtj.telemetry import heartbeat


def evaluate(
    score: Callable[[Any], torch.Tensor],
    feed: Feed,
    *,
    strategy: Strategy,
    precision: Precision,
    group: "dist.ProcessGroup | None",
) -> float:
    """Mean score over one epoch of the feed; the same number on every rank.

    score  micro-batch of k samples -> k values; each batch of the feed is one micro-batch on every rank
    A rank without a sample in the last batch scores a dummy, which is not counted: forward may be collective.
    RecipeError if the score does not have one value per sample.
    """
    # bf16 and fp16 cannot add up many scores. Apple's GPUs have no float64.
    sum_type = torch.float32 if strategy.device.type == "mps" else torch.float64
    total = torch.zeros((), dtype=sum_type, device=strategy.device)
    count = 0
    with strategy.evaluating(), torch.no_grad(), precision.autocast():
        for batch in feed.epoch_once():
            heartbeat.mine.sign()
            for micro_batch in batch.micro_batches:
                found = score(batch.fetch(micro_batch))
                if found.numel() != len(micro_batch.indices):
                    raise RecipeError(
                        f"the score of {len(micro_batch.indices)} samples has shape {tuple(found.shape)}",
                        fix="return one value per sample, e.g. model(mb.x).argmax(1) == mb.y",
                    )
                if micro_batch.weight:
                    total += found.sum(dtype=sum_type)
                    count += len(micro_batch.indices)
    sums = torch.tensor([float(total), count], dtype=torch.float64)
    if group is not None:  # ranks that split one model count the same samples, which does not change the mean
        dist.all_reduce(sums, group=group)
    return float(sums[0] / sums[1])
