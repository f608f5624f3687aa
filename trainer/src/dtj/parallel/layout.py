"""Strategy and sizes -> the grid (device mesh) of ranks, and the place of this rank in it. Pure.

    --parallel hsdp --mesh fsdp=4    on 8 ranks    ddp=2 x fsdp=4: two copies, each sharded over four ranks

The last axis joins consecutive ranks, which share a node and its fast links. So it is used for the heaviest
traffic.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from dtj.errors import RecipeError
from dtj.ranks.world import World
from dtj.settings import STRATEGIES

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


def lay_out(strategy: str | None, mesh: str, world: World) -> Layout:
    """The grid that the flags describe.

    strategy  None: ddp if there are several ranks
    mesh      "tp=2" or "ddp=2,tp=2". Omitted sizes are derived from the world size; if both sizes of a
              strategy with two axes are omitted, the inner one is the number of processes per node
    Raise RecipeError if the sizes do not fit the world size.
    """
    name = strategy or "ddp"
    axes = STRATEGIES[name]
    sizes = _parse(mesh, name)
    if world.size == 1 and prod(sizes.values()) == 1:
        return Layout(strategy="none", sizes={}, rank=0)
    if name == "none":
        raise RecipeError(
            f"--parallel none would train {world.size} independent models, one in each process",
            fix="start one process, or use --parallel ddp",
        )
    open_axes = [a for a in axes if a not in sizes]
    if len(open_axes) == 2:
        inner = open_axes.pop()
        sizes[inner] = _node_size(name, inner, world)
    given = prod(sizes.values())
    if world.size % given or (not open_axes and world.size != given):
        wanted = " x ".join(f"{a}={sizes[a]}" for a in axes if a in sizes)
        raise RecipeError(
            f"{world.size} processes cannot form {wanted}: {given} does not divide {world.size}"
            if world.size % given
            else f"{world.size} processes cannot form {wanted}, which needs {given}",
            fix=f"start {-(-world.size // given) * given} processes, or change --mesh",
        )
    for axis in open_axes:
        sizes[axis] = world.size // given
    return Layout(strategy=name, sizes={a: sizes[a] for a in axes}, rank=world.rank)


def _node_size(name: str, inner: str, world: World) -> int:
    if 1 < world.local_size < world.size and world.size % world.local_size == 0:
        return world.local_size
    raise RecipeError(
        f"--parallel {name} has two axes, but --mesh gives no size for {world.size} processes",
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
