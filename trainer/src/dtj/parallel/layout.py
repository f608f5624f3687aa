"""Strategy and sizes -> the grid (device mesh) of ranks, and the place of this rank in it. Pure.

    --parallel hsdp --mesh fsdp=4    on 8 ranks    ddp=2 x fsdp=4: two copies, each sharded over four ranks

The last axis joins consecutive ranks, which share a node and its fast links. So it is used for the heaviest
traffic.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from dtj.errors import RecipeError
from dtj.settings import STRATEGIES

if TYPE_CHECKING:
    from dtj.ranks.world import World  # imports torch, for which the agent has no settings yet

_DATA_AXES = ("ddp", "fsdp")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A grid of ranks.

    strategy  a key of STRATEGIES; "none" if there is a single rank
    sizes     axis -> ranks along it, outermost first; their product is the world size
    rank      this process
    """

    strategy: str
    sizes: Mapping[str, int]
    rank: int

    def at(self, axis: str) -> int:
        """This rank's index along an axis; 0 if the grid has no such axis."""
        if axis not in self.sizes:
            return 0
        axes = list(self.sizes)
        inner = prod(self.sizes[a] for a in axes[axes.index(axis) + 1 :])
        return self.rank // inner % self.sizes[axis]

    def size(self, axis: str) -> int:
        """Number of ranks along an axis; 1 if the grid has no such axis."""
        return self.sizes.get(axis, 1)

    @cached_property
    def data_rank(self) -> int:
        """This rank's index among those with different samples; ranks that split one model have the same."""
        return self._index(_DATA_AXES)

    @cached_property
    def stream(self) -> int:
        """Index of this rank's random stream. Ranks of one tp group share it: they need the same dropout."""
        return self._index(axis for axis in self.sizes if axis != "tp")

    @cached_property
    def data_size(self) -> int:
        """Number of ranks with different samples, among which a global batch is divided."""
        return prod(self.size(axis) for axis in _DATA_AXES)

    def _index(self, axes: Iterable[str]) -> int:
        """This rank's index in the part of the grid that has these axes."""
        index = 0
        for axis in axes:
            index = index * self.size(axis) + self.at(axis)
        return index


def lay_out(strategy: str | None, mesh: str, world: "World") -> Layout:
    """The grid of the flags, with this rank in it; as for `sizes_of`, but strategy None is ddp."""
    name = strategy or "ddp"
    sizes = sizes_of(name, mesh, ranks=world.size, local=world.local_size)
    return Layout(strategy=name if sizes else "none", sizes=sizes, rank=world.rank)


def sizes_of(strategy: str, mesh: str, *, ranks: int, local: int) -> dict[str, int]:
    """The sizes of the grid that the flags describe; none for a single rank.

    mesh      "tp=2" or "ddp=2,tp=2". Omitted sizes are derived from the number of ranks; if both sizes of a
              strategy with two axes are omitted, the inner one is `local`, the number of ranks per node
    Raise RecipeError if the sizes do not fit the number of ranks.
    """
    axes = STRATEGIES[strategy]
    sizes = _parse(mesh, strategy)
    if ranks == 1 and prod(sizes.values()) == 1:
        return {}
    if strategy == "none":
        raise RecipeError(
            f"--parallel none would train {ranks} independent models, one in each process",
            fix="start one process, or use --parallel ddp",
        )
    open_axes = [a for a in axes if a not in sizes]
    if len(open_axes) == 2:
        inner = open_axes.pop()
        sizes[inner] = _node_size(strategy, inner, ranks=ranks, local=local)
    given = prod(sizes.values())
    if ranks % given or (not open_axes and ranks != given):
        wanted = " x ".join(f"{a}={sizes[a]}" for a in axes if a in sizes)
        raise RecipeError(
            f"{ranks} processes cannot form {wanted}: {given} does not divide {ranks}"
            if ranks % given
            else f"{ranks} processes cannot form {wanted}, which needs {given}",
            fix=f"start {-(-ranks // given) * given} processes, or change --mesh",
        )
    for axis in open_axes:
        sizes[axis] = ranks // given
    return {a: sizes[a] for a in axes}


def _node_size(name: str, inner: str, *, ranks: int, local: int) -> int:
    if 1 < local < ranks and ranks % local == 0:
        return local
    raise RecipeError(
        f"--parallel {name} has two axes, but --mesh gives no size for {ranks} processes",
        fix=f"give one, for example --mesh {inner}=2",
    )


def _parse(text: str, strategy: str) -> dict[str, int]:
    axes = STRATEGIES[strategy]
    sizes: dict[str, int] = {}
    for word in text.split(",") if text else []:
        axis, equals, number = (part.strip() for part in word.partition("="))
        if not equals or not number.isdecimal() or int(number) < 1:
            raise RecipeError(f"--mesh: invalid value {text!r}", fix="write axis=size, e.g. tp=2")
        if axis not in axes:
            known = ", ".join(axes) or "none"
            raise RecipeError(
                f"--mesh names the axis {axis!r}; --parallel {strategy} has {known}",
                fix="correct --mesh or --parallel",
            )
        sizes[axis] = int(number)
    return sizes
