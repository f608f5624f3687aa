"""Check that all ranks hold the same parameters and optimizer state: bit for bit, without a tolerance.

With equal weights at the start and equal gradients in every step, ranks stay equal. If they differ, something
is wrong that averaging would only hide: one rank changed its weights alone, or has faulty memory.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtj.errors import DtjError
from dtj.ranks import exchange

# Elements per chunk: no copy of a large tensor is needed, and a chunk fits in the CPU's cache.
_CHUNK = 2**15
_CHUNK_ON_ACCELERATOR = 2**22
# Constants of SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
_GOLDEN, _MIX_1, _MIX_2 = (
    number - 2**64 for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ReplicaCheck:
    """Compares the state of all ranks every N steps.

    every       steps between checks; None: never check
    optimizers  compare the state of optimizers, too
    """

    def __init__(self, every: int | None, *, optimizers: bool) -> None:
        self._every = every
        self._optimizers = optimizers
        self._is_due = False

    def after_step(
        self, step: int, parts: Mapping[str, Any], *, in_sync: bool, group: "dist.ProcessGroup | None"
    ) -> None:
        """Raise DtjError on every rank if any of them differs. Every rank calls this after every step.

        parts    registered by run.state
        in_sync  ranks should be equal after this step; a check that is due waits for such a step
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
        if int(extremes.sum()):  # largest minus smallest
            fingerprints = exchange.all_gather(mine, group=group)
            raise DtjError(
                f"the ranks have different state after step {step}: {explain(fingerprints)}",
                fix="look for code that changes weights on that rank only, or for faulty memory",
            )


def explain(fingerprints: list[dict[str, int]]) -> str:
    """Which ranks differ from most others (of two ranks: from rank 0), and in which tensors.

    fingerprints  by name of the tensor, for each rank
    """
    different = {}
    for name in {name: None for each in fingerprints for name in each}:
        values = [each.get(name) for each in fingerprints]
        usual = Counter(values).most_common(1)[0][0]  # among equally common values, that of the lowest rank
        if ranks := [rank for rank, value in enumerate(values) if value != usual]:
            different[name] = ranks
    ranks = sorted({rank for found in different.values() for rank in found})
    names = list(different)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    named = f"rank {ranks[0]} differs" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} differ"
    return f"{named} in {names[0]}{more}"


def fingerprint(value: torch.Tensor) -> torch.Tensor:
    """() int64: the bits of each element times an odd number for its place, added modulo 2^64.

    Any single changed element changes it. The odd numbers follow no pattern, so changes of several elements
    (two that were swapped) do not cancel out.
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
    """(count,) int64, pseudorandom, the same on every device."""
    mixed = torch.arange(1, count + 1, device=device) * _GOLDEN
    mixed = (mixed ^ _shifted(mixed, 30)) * _MIX_1
    mixed = (mixed ^ _shifted(mixed, 27)) * _MIX_2
    return (mixed ^ _shifted(mixed, 31)) | 1


def _shifted(numbers: torch.Tensor, places: int) -> torch.Tensor:
    """Logical shift to the right (torch's own shift keeps the sign)."""
    return (numbers >> places) & ((1 << (64 - places)) - 1)


def _tensors(parts: Mapping[str, Any], *, optimizers: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and optimizer state, by name. Not buffers, which may differ (batch norm's statistics)."""
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
