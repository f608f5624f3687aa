"""A rank with several devices, for a model that places its own parts on them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import device, nn

from dtj.errors import DeviceError, DtjError, RecipeError, is_device_fault
from dtj.parallel.strategy import move_to_device
from dtj.ranks import world
from dtj.ranks.device_files import gpus_given, gpus_visible, has_gpu
from dtj.ranks.world import World, choose_devices, devices_of


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


@pytest.mark.parametrize(
    ("files", "visible", "error"),
    [
        pytest.param(2, None, DeviceError, id="one has failed"),
        pytest.param(2, "0", RecipeError, id="one is hidden"),
        pytest.param(1, None, RecipeError, id="there is only one"),
    ],
)
def test_gpu_that_cuda_does_not_find_is_not_an_error_of_the_recipe(
    files: int,
    visible: str | None,
    error: type[DtjError],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(files):
        (tmp_path / f"nvidia{number}").touch()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(world, "check_all_gpus", partial(world.check_all_gpus, folder=tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(error):
        choose_devices(World(local_rank=1, local_size=2), requested=None)


def test_model_on_several_devices_is_not_moved() -> None:
    laid_out = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to("meta"))
    move_to_device(laid_out, device("meta"))
    assert [parameter.device.type for parameter in laid_out.parameters()] == ["cpu", "cpu", "meta", "meta"]


def test_model_on_one_device_is_moved() -> None:
    whole = move_to_device(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), device("meta"))
    assert {parameter.device.type for parameter in whole.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("files", "visible", "expected", "given", "left"),
    [
        (["nvidia0", "nvidia1", "nvidiactl"], None, True, 2, 2),
        (["nvidiactl"], None, False, 0, 0),
        (["kfd"], None, True, 0, 0),
        ([], None, False, 0, 0),
        ([], "0,1", False, 0, 0),
        (["nvidia0"], "", False, 0, 0),
        (["nvidia0"], "-1", False, 0, 0),
        (["nvidia0", "nvidia1"], "0", True, 0, 1),
        (["nvidia0", "nvidia1"], "1, 0", True, 0, 2),
        pytest.param(["nvidia0", "nvidia1"], "1,-1,0", True, 0, 1, id="CUDA reads no further"),
    ],
)
def test_gpu_is_found_by_its_files_unless_it_is_hidden(
    files: list[str], visible: str | None, expected: bool, given: int, left: int, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).touch()
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert has_gpu(env, tmp_path) is expected
    assert gpus_given(env, tmp_path) == given
    assert gpus_visible(env, tmp_path) == left


UNKNOWN = "CUDA unknown error - this may be due to an incorrectly set up environment"
NO_DRIVER = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"


@pytest.fixture
def gpu_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A torch for CUDA that finds no GPU, and says why once it is asked; there is the file of one."""

    def current(check_available: bool = False) -> torch.device | None:
        return None if check_available else device("cuda")

    def fail(error: str) -> None:
        def init() -> None:
            raise RuntimeError(error)

        monkeypatch.setattr(torch.accelerator, "current_accelerator", current)
        monkeypatch.setattr(torch.cuda, "init", init)
        (tmp_path / "nvidia0").touch()
        check = partial(world.check_gpu, folder=tmp_path)
        monkeypatch.setattr(world, "check_gpu", check)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fail


def test_rank_whose_gpu_is_broken_does_not_train_on_the_cpu(gpu_fails: Callable[[str], None]) -> None:
    gpu_fails(f"{UNKNOWN}\nmore")
    with pytest.raises(DtjError, match=f"cannot be used: {UNKNOWN}\n") as raised:
        choose_devices(World(), requested=None)
    found = (raised.value.exit_code, raised.value.reason)
    assert found == (1, "DeviceFault")  # not an invalid recipe: another node may help


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be"), True),
        (
            RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
            True,
        ),
        (RuntimeError(f"{UNKNOWN}\nmore"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("system not yet initialized"), False),
    ],
)
def test_error_of_a_broken_gpu_differs_from_those_of_the_program(error: Exception, expected: bool) -> None:
    assert is_device_fault(error) is expected


@pytest.mark.parametrize(
    ("error", "requested", "visible"),
    [
        pytest.param(NO_DRIVER, None, None, id="no GPU was given to the container"),
        pytest.param(UNKNOWN, None, "-1", id="the GPU is hidden"),
        pytest.param(UNKNOWN, "cpu", None, id="the CPU is asked for"),
    ],
)
def test_rank_without_a_gpu_of_its_own_trains_on_the_cpu(
    error: str,
    requested: str | None,
    visible: str | None,
    gpu_fails: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu_fails(error)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert choose_devices(World(), requested=requested) == (device("cpu"),)
