"""Flags and world size -> a grid of ranks."""

import pytest

from dtj.errors import RecipeError
from dtj.parallel.layout import lay_out
from dtj.ranks.world import World


@pytest.mark.parametrize(
    ("strategy", "mesh", "size", "node", "sizes"),
    [
        pytest.param(None, "", 1, 1, {}, id="one process has no grid"),
        pytest.param("fsdp", "", 1, 1, {}, id="one process shards nothing"),
        pytest.param(None, "", 4, 4, {"ddp": 4}, id="several processes are data parallel"),
        pytest.param("tp", "tp=4", 4, 4, {"tp": 4}, id="the size may be given"),
        pytest.param("tp+ddp", "tp=2", 8, 8, {"ddp": 4, "tp": 2}, id="the other size is derived"),
        pytest.param("pp+ddp", "pp=2,ddp=2", 4, 4, {"pp": 2, "ddp": 2}, id="both sizes are given"),
        pytest.param("hsdp", "", 8, 4, {"ddp": 2, "fsdp": 4}, id="shards stay in a node by default"),
    ],
)
def test_grid(strategy: str | None, mesh: str, size: int, node: int, sizes: dict[str, int]) -> None:
    grid = lay_out(strategy, mesh, World(size=size, local_size=node))
    assert dict(grid.sizes) == sizes
    assert (grid.strategy == "none") == (size == 1)


@pytest.mark.parametrize(
    ("strategy", "mesh", "size", "message"),
    [
        pytest.param("none", "", 2, "would train 2 independent models", id="none"),
        pytest.param("tp+ddp", "tp=3", 4, r"4 processes cannot form tp=3: 3 does not .* 6 processes", id="3"),
        pytest.param("tp", "tp=2", 4, r"4 processes cannot form tp=2, which needs 2", id="too few"),
        pytest.param("tp", "tp=2", 1, r"1 processes cannot form tp=2.*start 2 processes", id="one process"),
        pytest.param("tp+ddp", "", 4, r"two axes, but --mesh gives no size.*--mesh tp=2", id="no sizes"),
        pytest.param("fsdp", "tp=2", 4, r"names the axis 'tp'; --parallel fsdp has fsdp", id="other axis"),
        pytest.param("fsdp", "fsdp", 4, r"--mesh: invalid value 'fsdp'.*tp=2", id="no size"),
    ],
)
def test_sizes_that_are_refused(strategy: str, mesh: str, size: int, message: str) -> None:
    with pytest.raises(RecipeError, match=f"(?s){message}"):
        lay_out(strategy, mesh, World(size=size, local_size=size))


def test_ranks_that_split_one_model_share_their_samples() -> None:
    grids = [lay_out("tp+ddp", "tp=2", World(rank=r, size=4, local_size=4)) for r in range(4)]
    assert [(g.data_rank, g.data_size, g.at("tp")) for g in grids] == [
        (0, 2, 0),
        (0, 2, 1),
        (1, 2, 0),
        (1, 2, 1),
    ]
    grids = [lay_out("pp+ddp", "pp=2", World(rank=r, size=4, local_size=4)) for r in range(4)]
    assert [(g.data_rank, g.at("pp")) for g in grids] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    grids = [lay_out("hsdp", "fsdp=2", World(rank=r, size=4, local_size=4)) for r in range(4)]
    assert [g.data_rank for g in grids] == [0, 1, 2, 3]


def test_ranks_that_hold_the_same_activations_draw_the_same_numbers() -> None:
    def streams(strategy: str, mesh: str) -> list[int]:
        return [lay_out(strategy, mesh, World(rank=r, size=4, local_size=4)).stream for r in range(4)]

    assert streams("tp+ddp", "tp=2") == [0, 0, 1, 1]
    assert streams("tp+fsdp", "tp=2") == [0, 0, 1, 1]
    assert streams("tp", "") == [0, 0, 0, 0]
    for strategy, mesh in (("ddp", ""), ("pp+ddp", "pp=2"), ("hsdp", "fsdp=2")):
        assert streams(strategy, mesh) == [0, 1, 2, 3]
