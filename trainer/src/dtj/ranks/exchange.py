"""Collectives for plain data: dicts, lists, numbers, strings and tensors, as bytes that execute no code.

torch's own collectives for objects unpickle what arrives, so a process that takes a rank's place at the
rendezvous, which has no authentication, could run code in every rank. Here `weights_only` reads the bytes.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_flatten, tree_unflatten

from dtj.errors import RecipeError
from dtj.ranks import waits

_REDUCTIONS = {"mean": "SUM", "sum": "SUM", "max": "MAX", "min": "MIN"}


def broadcast(value: Any, *, src: int, group: "dist.ProcessGroup") -> Any:
    """The value of rank `src` of the group, on every rank of it; the others' are ignored."""
    device, is_sender = _device_of(group), dist.get_rank(group) == src
    mine = _encode(value, device) if is_sender else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([len(mine)], device=device)
    dist.broadcast(length, group_src=src, group=group)
    data = mine if is_sender else torch.empty(int(length), dtype=torch.uint8, device=device)
    waits.wait(dist.broadcast(data, group_src=src, group=group, async_op=True), device)
    return value if is_sender else _decode(data)


def share_state(state: Any, *, group: "dist.ProcessGroup") -> Any:
    """Rank 0's state, on every rank; the others' are ignored. Sent tensor by tensor: needs little memory.

    state  nested dicts, lists and tuples of tensors and plain data
    """
    is_sender = dist.get_rank() == 0
    leaves, structure = tree_flatten(state if is_sender else None)
    shapes = [torch.empty_like(x, device="meta") if isinstance(x, torch.Tensor) else x for x in leaves]
    found = broadcast(tree_unflatten(shapes, structure), src=0, group=group)
    found, structure = tree_flatten(found)
    for number, value in enumerate(found):
        if isinstance(value, torch.Tensor):
            whole = leaves[number].contiguous() if is_sender else torch.empty(value.shape, dtype=value.dtype)
            there = whole.reshape(-1).view(torch.uint8).to(_device_of(group))
            waits.wait(dist.broadcast(there, src=0, group=group, async_op=True), there.device)
            found[number] = there.cpu().view(value.dtype).view(value.shape)
    return state if is_sender else tree_unflatten(found, structure)


def gather(value: Any, *, group: "dist.ProcessGroup") -> list[Any]:
    """The values of all ranks, in their order, on the group's first rank; elsewhere an empty list."""
    if dist.get_rank(group) > 0:
        send(value, to=[0], group=group)
        return []
    # One rank after the other: trees of sharded state are small, and need memory one at a time.
    return [value, *(receive(rank, group=group) for rank in range(1, dist.get_world_size(group)))]


def send(value: Any, *, to: Iterable[int], group: "dist.ProcessGroup") -> None:
    """Send a value to these ranks of the group, which call `receive`."""
    data = _encode(value, _device_of(group))

    def run() -> None:
        for rank in to:
            for each in (torch.tensor([len(data)], device=data.device), data):
                waits.wait_for_peer(dist.isend(each, group=group, group_dst=rank))

    waits.run(run, data.device)


def receive(source: int, *, group: "dist.ProcessGroup") -> Any:
    """The value that a rank of the group sends."""
    device = _device_of(group)
    length = torch.zeros(1, dtype=torch.int64, device=device)
    waits.wait_for_peer(dist.irecv(length, group=group, group_src=source))
    data = torch.empty(int(length), dtype=torch.uint8, device=device)
    waits.wait_for_peer(dist.irecv(data, group=group, group_src=source))
    return _decode(data)


def all_gather(value: Any, *, group: "dist.ProcessGroup") -> list[Any]:
    """The values of all ranks, in their order, on every rank."""
    found: list[Any] = broadcast(gather(value, group=group), src=0, group=group)
    return found


def all_gather_numbers(mine: Sequence[int], *, group: "dist.ProcessGroup | None") -> list[list[int]]:
    """The whole numbers of all ranks, equally many of each, on every rank; without a group, of this one."""
    numbers = torch.tensor([int(number) for number in mine])
    if group is None:
        return [numbers.tolist()]
    found = [torch.empty_like(numbers) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, numbers, group=group)
    return [each.tolist() for each in found]


def all_gather_number(mine: int, *, group: "dist.ProcessGroup | None") -> list[int]:
    """One whole number of each rank, likewise."""
    return [number for (number,) in all_gather_numbers([mine], group=group)]


def check_equal(mine: Mapping[str, int], *, group: "dist.ProcessGroup | None") -> None:
    """RecipeError on all ranks if these whole numbers, by what they are, differ among them. Collective."""
    first, *others = all_gather_numbers(list(mine.values()), group=group)
    for rank, numbers in enumerate(others, start=1):
        for name, expected, number in zip(mine, first, numbers, strict=True):
            if number != expected:
                raise RecipeError(
                    f"the ranks disagree: {name} is {expected} on rank 0 and {number} on rank {rank}",
                    fix="pass the same on every rank; dtj divides the whole dataset among the ranks",
                )


def reduce(mine: torch.Tensor, how: str) -> torch.Tensor:
    """The mean, sum, max or min of a tensor over all ranks, on every rank. See `reducible`."""
    found = mine.clone()
    if not dist.is_initialized():
        return found
    operation = getattr(dist.ReduceOp, _REDUCTIONS[how])
    waits.wait(dist.all_reduce(found, op=operation, async_op=True), found.device)
    return found / dist.get_world_size() if how == "mean" else found


def reducible(value: torch.Tensor | float, how: str, device: torch.device) -> torch.Tensor:
    """The value as a tensor for `reduce`, without a graph; RecipeError for an unknown word `how`."""
    if how not in _REDUCTIONS:
        raise RecipeError(f"run.reduce got {how!r}", fix=f"choose one of {', '.join(_REDUCTIONS)}")
    mine = torch.as_tensor(value).detach().to(device)
    if how == "mean" and not mine.is_floating_point():
        return mine.float()
    return mine.long() if how == "sum" and mine.dtype == torch.bool else mine  # else True + True is True


def _encode(value: Any, device: torch.device) -> torch.Tensor:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8).to(device)


def _decode(data: torch.Tensor) -> Any:
    return torch.load(io.BytesIO(data.cpu().numpy().tobytes()), map_location="cpu", weights_only=True)


def _device_of(group: "dist.ProcessGroup") -> torch.device:
    accelerator = None if "gloo" in dist.get_backend(group) else torch.accelerator.current_accelerator()
    return accelerator or torch.device("cpu")
