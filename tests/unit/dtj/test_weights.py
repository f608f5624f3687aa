"""Files of weights, as transformers writes them, are loaded into a model."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dtj.checkpoint import weights
from dtj.errors import RecipeError
from dtj.parallel import deferred
from dtj.parallel.pipeline import check_one_shape

CPU = torch.device("cpu")


class Tied(nn.Module):
    """A language model whose head has the weights of its embedding."""

    _keys_to_ignore_on_load_unexpected = (r"attn\.bias$",)

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer, self.head = (
            nn.Embedding(5, 3),
            nn.Linear(3, 3),
            nn.Linear(3, 5, bias=False),
        )
        self.head.weight = self.embedding.weight


def file_of(model: nn.Module, *without: str) -> dict[str, torch.Tensor]:
    return {name: v.clone() for name, v in model.state_dict().items() if name not in without}


def test_tied_weights_are_in_the_file_once(tmp_path: Path) -> None:
    source, target = Tied(), Tied()
    save_file(
        file_of(source, "head.weight") | {"h.0.attn.bias": torch.ones(2)}, tmp_path / "model.safetensors"
    )
    weights.load(target, CPU, path=tmp_path / "model.safetensors")
    torch.testing.assert_close(target.state_dict(), source.state_dict())
    assert target.head.weight is target.embedding.weight


def test_folder_with_an_index_of_several_files(tmp_path: Path) -> None:
    source, target = Tied(), Tied()
    found = file_of(source, "head.weight")
    first, *others = found
    save_file({first: found[first]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({name: found[name] for name in others}, tmp_path / "model-00002-of-00002.safetensors")
    files = {name: f"model-0000{1 if name == first else 2}-of-00002.safetensors" for name in found}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    weights.load(target, CPU, path=tmp_path)
    torch.testing.assert_close(target.state_dict(), source.state_dict())


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(file_of(Tied(), "head.weight", "embedding.weight"), file)
    with pytest.raises(RecipeError, match=r"lacks embedding.weight \(and 1 more\)"):
        weights.load(Tied(), CPU, path=file)
    save_file(file_of(Tied(), "head.weight") | {"more": torch.ones(1)}, file)
    with pytest.raises(RecipeError, match="has more, which the model does not have"):
        weights.load(Tied(), CPU, path=file)
    with pytest.raises(RecipeError, match=r"there is no file .*model.safetensors"):
        weights.load(Tied(), CPU, path=tmp_path / "..")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(RecipeError, match="is not an index of weights"):
        weights.load(Tied(), CPU, path=tmp_path)
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "w.pt")
    with pytest.raises(RecipeError, match=r"has bias of shape \(2,\), not \(5,\) \(and 1 more\)"):
        weights.load(nn.Linear(3, 5), CPU, path=tmp_path / "w.pt")
    torch.save(nn.Linear(3, 2), tmp_path / "w.pt")
    with pytest.raises(RecipeError, match="is not a state_dict"):
        weights.load(nn.Linear(3, 2), CPU, path=tmp_path / "w.pt")


class Holder(nn.Module):
    """Has names that begin as those of DDP."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.weight = nn.Linear(2, 2, bias=False), nn.Parameter(torch.randn(1))


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_weights_of_a_wrapped_model_fit(tmp_path: Path, prefix: str) -> None:
    source, target = Holder(), Holder()
    file = {prefix + name: value for name, value in source.state_dict().items()}
    torch.save(file, tmp_path / "w.pt")
    weights.load(target, CPU, path=tmp_path / "w.pt")
    torch.testing.assert_close(target.state_dict(), source.state_dict())


def test_model_without_memory_gets_its_weights_from_a_file(tmp_path: Path) -> None:
    source = Tied()
    save_file(file_of(source, "head.weight"), tmp_path / "model.safetensors")
    with deferred.without_weights():
        target = Tied()
    assert all(p.is_meta for p in target.parameters())
    assert not any(p.is_meta for p in Tied().parameters()), "after the context, too"
    weights.load(target, CPU, path=tmp_path / "model.safetensors")
    torch.testing.assert_close(target.state_dict(), source.state_dict())
    assert target.head.weight is target.embedding.weight


def test_model_without_values_is_refused() -> None:
    with torch.device("meta"):
        model = nn.BatchNorm1d(3)
    with pytest.raises(RecipeError, match=r"(?s)weight is on the meta device.*run.parallel\(lambda"):
        deferred.check_values(model, has_file=False)
    with pytest.raises(RecipeError, match="running_mean is on the meta device"):
        deferred.check_values(model, has_file=True)


def test_samples_of_a_pipeline_have_one_shape() -> None:
    check_one_shape([torch.ones(4, 7), torch.ones(3, 7)], torch.Size([7]))
    with pytest.raises(RecipeError, match=r"shape \(8,\) come after samples of shape \(7,\).*one shape"):
        check_one_shape([torch.ones(4, 7), torch.ones(4, 8)], torch.Size([7]))
