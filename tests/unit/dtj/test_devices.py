"""A rank with several devices, for a model that places its own parts on them."""

from pathlib import Path

import pytest
from torch import device, nn

from dtj.agent.rank import cuda
from dtj.errors import RecipeError
from dtj.parallel.strategy import move_to_device
from dtj.ranks.world import devices_of


@pytest.mark.parametrize(
    ("local_rank", "count", "expected"), [(0, 1, [0]), (3, 1, [3]), (0, 2, [0, 1]), (1, 2, [2, 3])]
)
def test_each_rank_of_a_node_has_its_own_devices(local_rank: int, count: int, expected: list[int]) -> None:
    assert list(devices_of(local_rank, count=count, kind="cuda", available=4)) == expected


@pytest.mark.parametrize(
    ("local_rank", "count", "available", "fix"),
    [
        pytest.param(4, 1, 4, "start at most 4 processes per node", id="a rank too many"),
        pytest.param(1, 3, 4, "start at most 1 processes per node", id="too many for two ranks"),
        pytest.param(0, 3, 2, "use fewer --devices", id="too many for one rank"),
    ],
)
def test_error_says_how_many_devices_the_machine_has(
    local_rank: int, count: int, available: int, fix: str
) -> None:
    with pytest.raises(RecipeError, match=f"this machine has {available}") as raised:
        devices_of(local_rank, count=count, kind="cuda", available=available)
    assert fix in str(raised.value)


def test_model_on_several_devices_is_not_moved() -> None:
    laid_out = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to("meta"))
    move_to_device(laid_out, device("meta"))
    assert [parameter.device.type for parameter in laid_out.parameters()] == ["cpu", "cpu", "meta", "meta"]


def test_model_on_one_device_is_moved() -> None:
    whole = move_to_device(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), device("meta"))
    assert {parameter.device.type for parameter in whole.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("files", "visible", "expected"),
    [
        (["nvidia0", "nvidiactl"], None, True),
        (["nvidiactl"], None, False),
        (["kfd"], None, True),
        ([], None, False),
        (["nvidia0"], "", False),
        (["nvidia0"], "-1", False),
        (["nvidia0"], "0", True),
    ],
)
def test_gpu_is_found_by_its_files_unless_it_is_hidden(
    files: list[str], visible: str | None, expected: bool, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).touch()
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert cuda.has_device(env, tmp_path) is expected
