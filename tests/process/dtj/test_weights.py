"""Weights in the files of transformers are loaded into shards, without the memory of the whole model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dtj.parallel import deferred
from tests.process.dtj.conftest import PROGRAMS, Finished
from tests.process.dtj.programs.large import Large

Finish = Callable[..., Finished]
CONSTANT = 16 * 2**20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as transformers writes it: bfloat16, two files and an index, tied weights once."""
    folder = tmp_path_factory.mktemp("large")
    with deferred.without_weights():
        shapes = {name: p.shape for name, p in Large().named_parameters()}
    files: dict[str, dict[str, torch.Tensor]] = {f"model-0000{n}-of-00002.safetensors": {} for n in (1, 2)}
    for number, (name, shape) in enumerate(shapes.items()):
        whole = torch.arange(shape.numel()).remainder(211).add(number).to(torch.bfloat16)
        files[f"model-0000{1 + number % 2}-of-00002.safetensors"][name] = whole.view(shape)
    for file, tensors in files.items():
        save_file(tensors, folder / file)
    index = {"weight_map": {name: file for file, tensors in files.items() for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(("fsdp",), id="fsdp"),
        pytest.param(("tp",), id="tp"),
        pytest.param(("tp+fsdp", "--mesh", "tp=2"), id="tp+fsdp"),
    ],
)
def test_a_rank_only_needs_the_memory_of_its_shards(
    finish: Finish, large: Path, strategy: tuple[str, ...]
) -> None:
    program = PROGRAMS / "large.py"
    ended = finish("run", "--nproc", 4, "--parallel", *strategy, "--weights", large, program)
    assert ended.code == 0, ended.err
    lines = [line.split()[-2:] for line in ended.out.splitlines() if "memory" in line]
    assert len(lines) == 4
    for held, grown in lines:
        assert 26e6 < int(held) < 33e6
        assert int(grown) <= 1.3 * int(held) + CONSTANT, (held, grown)
