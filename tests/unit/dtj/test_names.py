"""A checkpoint has the names of any strategy, torch and the program those of DDP."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from dtj.checkpoint.parts import Parts
from dtj.parallel.ddp import RebuildableDDP
from dtj.parallel.layout import Layout
from dtj.parallel.names import load_state, named_buffers, named_parameters, state_of
from dtj.parallel.strategy import Strategy
from dtj.step.ema import EMA


def wrapped(model: nn.Module) -> nn.Module:
    """As `--parallel ddp` wraps it, but without a process group."""
    wrapper = RebuildableDDP.__new__(RebuildableDDP)
    nn.Module.__init__(wrapper)
    wrapper.module = model
    return wrapper


class Layer(nn.Linear):
    """Is loaded with its version, and reads a name of an earlier version of the program."""

    _version = 2

    def __init__(self) -> None:
        super().__init__(2, 1)

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *how: Any) -> None:
        assert metadata["version"] == 2
        if f"{prefix}kernel" in state:
            state[f"{prefix}weight"] = state.pop(f"{prefix}kernel")
        super()._load_from_state_dict(state, prefix, metadata, *how)


class Holder(nn.Module):
    """Calls its layer as DDP calls the model."""

    def __init__(self) -> None:
        super().__init__()
        self.module = Layer()


def test_buffers_have_the_names_of_the_state() -> None:
    model = nn.ModuleDict({"actor": wrapped(nn.BatchNorm1d(2)), "critic": nn.BatchNorm1d(2)})
    found = {name for name, _, _ in named_buffers(model)}
    assert found == state_of(model).keys() - {name for name, _ in named_parameters(model)}


def test_names_of_a_wrapped_model_are_those_of_torchs_ddp() -> None:
    """torch.distributed.checkpoint and programs that cut off or add "module." rely on them."""
    model = wrapped(nn.Linear(2, 1))
    assert list(model.state_dict()) == [name for name, _ in model.named_parameters()]
    state = get_model_state_dict(model)
    assert list(state) == ["weight", "bias"]
    set_model_state_dict(model, dict(state))
    found = model.load_state_dict(state, strict=False)
    assert (found.missing_keys, found.unexpected_keys) == (
        ["module.weight", "module.bias"],
        ["weight", "bias"],
    )


def test_module_that_holds_wrapped_models_has_the_names_of_any_strategy() -> None:
    """E.g. an agent with an actor and a critic."""

    def agent(wrap: Any) -> tuple[nn.ModuleDict, Parts]:
        model = nn.ModuleDict(
            {"actor": wrap(nn.Linear(2, 2)), "critic": wrap(nn.Sequential(nn.Linear(2, 1)))}
        )
        parts = Parts(Strategy(Layout(strategy="none", sizes={}, rank=0), torch.device("cpu")))
        opt = torch.optim.SGD(model.parameters())
        parts.register({"agent": model, "opt": opt, "average": EMA(model)})
        return model, parts

    (first, saved), (second, loaded) = agent(wrapped), agent(lambda model: model)
    for parts, others in ((loaded, saved), (saved, loaded)):
        parts.load(others.state(3), None)
    assert all(torch.equal(*pair) for pair in zip(first.parameters(), second.parameters(), strict=True))
    names = [name for name, _ in second.named_parameters()]
    assert list(loaded.state(3)["parts"]["average"]) == names
    saved.load_rank_state(saved.rank_state())
    templates = saved.templates()
    assert [path for path in names if templates(f"agent/{path}") is None] == []


@pytest.mark.parametrize(
    ("build", "names"),
    [
        pytest.param(lambda: wrapped(Layer()), ["weight", "bias"], id="itself"),
        pytest.param(
            lambda: wrapped(Holder()), ["module.weight", "module.bias"], id="a layer that is called module"
        ),
        pytest.param(
            lambda: nn.ModuleList([wrapped(Layer())] * 2),
            ["0.weight", "0.bias", "1.weight", "1.bias"],
            id="twice in one module",
        ),
        pytest.param(
            lambda: nn.Sequential(wrapped(nn.Sequential(wrapped(Holder())))),
            ["0.0.module.weight", "0.0.module.bias"],
            id="one in another",
        ),
    ],
)
def test_names_in_a_checkpoint_have_no_wrappers(build: Callable[[], nn.Module], names: list[str]) -> None:
    model, target = build(), build()
    state = state_of(model)
    assert list(state) == names
    assert [name for name, _ in named_parameters(model)] == names[:2]
    assert {name.rpartition(".")[0] for name in names} <= set(state._metadata)
    load_state(target, state)
    torch.testing.assert_close(target.state_dict(), model.state_dict())


def test_layer_may_load_a_state_with_other_names_itself() -> None:
    model = nn.ModuleDict({"actor": wrapped(Layer())})
    state = state_of(model)
    state["actor.kernel"] = state.pop("actor.weight")
    load_state(model, state)


class Stripping(nn.ModuleDict):
    """Cuts off "module." itself, as programs do that also run without DDP."""

    def state_dict(self, *how: Any, **named: Any) -> Any:
        state = super().state_dict(*how, **named)
        return {name.replace("module.", ""): value for name, value in state.items()}

    def load_state_dict(self, state_dict: Any, *how: Any, **named: Any) -> Any:
        full = {name.replace("actor.", "actor.module."): value for name, value in state_dict.items()}
        return super().load_state_dict(full, *how, **named)


def test_module_may_have_names_without_wrappers_itself() -> None:
    model, target = (Stripping({"actor": wrapped(nn.Linear(2, 1))}) for _ in range(2))
    load_state(target, state_of(model))
    torch.testing.assert_close(target.state_dict(), model.state_dict())
