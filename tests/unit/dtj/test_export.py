"""Weights of a checkpoint are written as other programs read them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dtj.checkpoint import export, paths, reader, weights
from dtj.checkpoint.checkpointer import Checkpointer
from dtj.cli import commands
from dtj.errors import CheckpointError, DamagedError, RecipeError
from dtj.parallel.layout import Layout
from dtj.parallel.strategy import Strategy
from dtj.ranks.world import World
from dtj.settings import Settings
from tests.support import checkpoints
from tests.unit.dtj.test_weights import CPU, Tied

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
BOTH = pytest.mark.parametrize("is_sharded", [False, True], ids=["whole", "sharded"])


def checkpoint(folder: Path, *, is_sharded: bool) -> tuple[Path, Tied]:
    """A checkpoint of one step of Adam, and its model."""
    strategy = Strategy(Layout(strategy="none", sizes={}, rank=0), CPU)
    strategy.replicated = not is_sharded
    saver = Checkpointer(
        settings=Settings(checkpoint_dir=str(folder)),
        world=World(),
        strategy=strategy,
        clock=lambda: 0.0,
        say=print,
    )
    model = Tied()
    strategy.add(model, is_healing=False)
    optimizer = torch.optim.Adam(model.parameters())
    model.head(model.layer(model.embedding(torch.arange(5)))).sum().backward()
    optimizer.step()
    saver.parts.register({"model": model, "optimizer": optimizer})
    saver.save(1, group=None)
    return folder / "step-1", model


@BOTH
def test_folder_of_several_files_is_loaded_again(tmp_path: Path, *, is_sharded: bool) -> None:
    source, model = checkpoint(tmp_path / "run", is_sharded=is_sharded)
    folder = tmp_path / "exported"
    assert export.export(source, folder, part="model", max_file_bytes=50) == 3
    assert sorted(file.name for file in folder.iterdir()) == [
        *(f"model-0000{n}-of-00002.safetensors" for n in (1, 2)),
        "model.safetensors.index.json",
    ]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    sizes = {"embedding.weight": 60, "layer.weight": 36, "layer.bias": 12}
    assert index["metadata"]["total_size"] == sum(sizes.values())
    assert index["weight_map"].keys() == sizes.keys(), "tied weights once"
    again = Tied()
    weights.load(again, CPU, path=folder)
    torch.testing.assert_close(again.state_dict(), model.state_dict())
    with pytest.raises(RecipeError, match=r"there are weights in .*exported already"):
        export.export(source, folder, part="model")


@BOTH
@pytest.mark.parametrize("name", ["exported", "w.safetensors", "w.pt"])
def test_weights_are_converted(tmp_path: Path, name: str, *, is_sharded: bool) -> None:
    source, model = checkpoint(tmp_path / "run", is_sharded=is_sharded)
    export.export(source, tmp_path / name, part="model", dtype=torch.bfloat16)
    found = weights.read(tmp_path / name)
    expected = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
    if name != "w.pt":
        del expected["head.weight"]
    torch.testing.assert_close(dict(found), expected)


def test_optimizer_is_not_read(tmp_path: Path) -> None:
    """Neither is its damage noticed."""
    source, model = checkpoint(tmp_path / "run", is_sharded=True)
    (file,) = (source / paths.SHARDS).glob("*.distcp")
    data = file.read_bytes()
    gradient = model.layer.weight.grad
    assert gradient is not None
    moment = 0.1 * gradient
    assert data.count(moment.numpy().tobytes()) == 1
    file.write_bytes(data.replace(moment.numpy().tobytes(), bytes(36)))
    with pytest.raises(DamagedError):
        checkpoints.whole(source)
    assert export.export(source, tmp_path / "w.pt", part="model") == 3


@BOTH
def test_part_that_is_not_a_model_is_refused(tmp_path: Path, *, is_sharded: bool) -> None:
    source, _ = checkpoint(tmp_path / "run", is_sharded=is_sharded)
    with pytest.raises(RecipeError, match="the part 'optimizer' is not a model"):
        export.export(source, tmp_path / "w.pt", part="optimizer")
    with pytest.raises(RecipeError, match="has no part 'net'") as raised:
        export.export(source, tmp_path / "w.pt", part="net")
    assert raised.value.fix == "--part is one of model, optimizer"


@pytest.mark.parametrize("when", ["mapped", "shards_of"], ids=["before it is opened", "after it was opened"])
def test_checkpoint_that_its_run_removes_meanwhile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A run that trains on keeps the newest ones only."""
    source, _ = checkpoint(tmp_path / "run", is_sharded=True)
    read = getattr(reader, when)

    def removed(folder: Path) -> Any:
        found = read(folder) if when == "shards_of" else None
        shutil.rmtree(source)
        return found or read(folder)

    monkeypatch.setattr(reader, when, removed)
    with pytest.raises(CheckpointError, match="run/step-1 was removed while it was read"):
        export.export(source.parent, tmp_path / "w.pt", part="model")


def test_size_of_files_is_refused_if_it_is_none_or_the_target_is_one_file(capsys: Capture) -> None:
    for size, target, what in (("5", "out", "--max-shard-size is '5'"), ("1GB", "w.pt", "w.pt is one file")):
        with pytest.raises(SystemExit) as ended:
            commands.main(["export", "run", target, "--max-shard-size", size])
        assert ended.value.code == 78
        assert what in capsys.readouterr().err
