"""Do all ranks hold the same parameters and the same optimizer state? Told by their bits, not by a tolerance.

Equal weights at the start and equal gradients in every step keep replicas equal for ever. Where they are not,
something is wrong that averaging would only hide: weights changed on one rank alone, or bad memory.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtj.errors import DtjError

# Elements at once: a large tensor needs no second of its size, and a CPU's cache holds them.
_CHUNK = 2**15
_CHUNK_ON_ACCELERATOR = 2**22
# Of SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
_GOLDEN, _MIX_1, _MIX_2 = (
    number - 2**64 for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ReplicaCheck:
    """Compares what the ranks hold every so many steps.

    every       steps; None never compares
    optimizers  the state of optimizers is to be the same, too
    """

    def __init__(self, every: int | None, *, optimizers: bool) -> None:
        self._every = every
        self._optimizers = optimizers
        self._is_due = False

    def after_step(
        self, step: int, parts: Mapping[str, Any], *, in_sync: bool, group: "dist.ProcessGroup | None"
    ) -> None:
        """Raise DtjError on every rank where one differs. Every rank calls it after every step.

        parts    what run.state named
        in_sync  the ranks are to be equal after this step; a check that is due waits for such a step
        """
        self._is_due = self._is_due or (self._every is not None and step % self._every == 0)
        if not self._is_due or not in_sync or group is None:
            return
        self._is_due = False
        tensors = dict(_tensors(parts, optimizers=self._optimizers))
        mine = {name: int(fingerprint(tensors[name])) for name in sorted(tensors)}
        digest = int.from_bytes(blake2b(repr(mine).encode(), digest_size=7).digest(), "big")
        extremes = torch.tensor([digest, -digest])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=group)
        if int(extremes.sum()):  # largest less smallest
            everyone: list[dict[str, int]] = [{} for _ in range(dist.get_world_size(group))]
            dist.all_gather_object(everyone, mine, group=group)
            raise DtjError(
                f"after step {step} the ranks hold different states: {explain(everyone)}",
                fix="look for what that rank alone does, as weights set outside the optimizer, or bad memory",
            )


def explain(everyone: list[dict[str, int]]) -> str:
    """Which ranks differ from most others (of two: from rank 0), and in what; fingerprints by rank."""
    different = {}
    for name in {name: None for each in everyone for name in each}:
        values = [each.get(name) for each in everyone]
        usual = Counter(values).most_common(1)[0][0]  # the first of several
        if ranks := [rank for rank, value in enumerate(values) if value != usual]:
            different[name] = ranks
    ranks = sorted({rank for found in different.values() for rank in found})
    names = list(different)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    named = f"rank {ranks[0]} differs" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} differ"
    return f"{named} in {names[0]}{more}"


def fingerprint(value: torch.Tensor) -> torch.Tensor:
    """() int64: bits times an odd number for each place, added modulo 2^64.

    One changed element always changes it. The numbers have no pattern that several could follow.
    """
    plain = value.detach()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    bits = plain.contiguous().view(_INTEGERS[plain.element_size()]).flatten()
    size = _CHUNK if value.device.type == "cpu" else _CHUNK_ON_ACCELERATOR
    odd = _odd_numbers(min(size, bits.numel()), value.device)
    total = torch.zeros((), dtype=torch.int64, device=value.device)
    for first in range(0, bits.numel(), size):
        chunk = bits[first : first + size].to(torch.int64)
        total = total * _GOLDEN + (chunk * odd[: len(chunk)]).sum()
    return total


def _odd_numbers(count: int, device: torch.device) -> torch.Tensor:
    """(count,) int64, as good as random, the same on every device."""
    mixed = torch.arange(1, count + 1, device=device) * _GOLDEN
    mixed = (mixed ^ _shifted(mixed, 30)) * _MIX_1
    mixed = (mixed ^ _shifted(mixed, 27)) * _MIX_2
    return (mixed ^ _shifted(mixed, 31)) | 1


def _shifted(numbers: torch.Tensor, places: int) -> torch.Tensor:
    """To the right, as if they had no sign."""
    return (numbers >> places) & ((1 << (64 - places)) - 1)


def _tensors(parts: Mapping[str, Any], *, optimizers: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and what optimizers keep of them, by name; buffers may differ (batch norm's statistics)."""
    names: dict[Any, str] = {}
    for part, model in parts.items():
        if isinstance(model, nn.Module):
            for name, weight in model.named_parameters():
                names[weight] = f"{part}.{name}"
                yield names[weight], weight
    for part, optimizer in parts.items():
        if optimizers and isinstance(optimizer, torch.optim.Optimizer):
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        yield f"{part}'s {key} of {names.get(parameter, 'a parameter')}", value
