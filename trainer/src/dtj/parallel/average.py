"""The mean of many tensors over a group, in few collectives."""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import nn

from dtj.parallel.strategy import local_part
from dtj.ranks import waits

# Large enough that latency does not matter, small enough to cost little memory beside the model.
_BUCKET_BYTES = 32 * 2**20


@torch.no_grad()
def average(tensors: Iterable[torch.Tensor], group: "dist.ProcessGroup | None") -> None:
    """Replace each tensor by its mean over the group. Every rank passes the same shapes in the same order."""
    pending = []
    size = dist.get_world_size(group)
    for bucket in buckets(tensors):
        flat = torch.cat([t.reshape(-1) for t in bucket]).div_(size)
        pending.append((bucket, flat, dist.all_reduce(flat, group=group, async_op=True)))
    for bucket, flat, work in pending:
        waits.wait(work, flat.device)
        unflatten(flat, bucket)


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter], group: "dist.ProcessGroup | None") -> None:
    """Replace the gradient of each parameter by its mean over the group.

    A rank may leave parameters out, for example in a branch that depends on its samples: they count as zero
    there. Those that no rank used have no gradient afterwards either.
    """
    trained = [p for p in parameters if p.requires_grad]
    missing = [p for p in trained if p.grad is None]
    if not trained:
        return
    mine = torch.tensor([p.grad is not None for p in trained], dtype=torch.uint8)
    used = mine.to(trained[0].device, non_blocking=True)  # made there, it would wait for backward to end
    agreed = dist.all_reduce(used, op=dist.ReduceOp.MAX, group=group, async_op=True)
    for parameter in missing:
        parameter.grad = torch.zeros_like(parameter)
    average((local_part(p.grad) for p in trained), group)
    waits.wait(agreed, used.device)
    if missing:  # all others need not wait for the device
        for parameter, is_used in zip(trained, used.tolist(), strict=True):
            if not is_used:
                parameter.grad = None


def unflatten(flat: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Copy a flat vector into the tensors whose concatenation it is."""
    start = 0
    for tensor in tensors:
        tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()


def buckets(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Consecutive tensors of one dtype, at most 32 MiB per bucket; a larger tensor gets its own bucket."""
    found: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        bytes_ = tensor.numel() * tensor.element_size()
        if found and (tensor.dtype != found[0].dtype or size + bytes_ > _BUCKET_BYTES):
            yield found
            found, size = [], 0
        found.append(tensor)
        size += bytes_
    if found:
        yield found
