"""A model as the user built it -> as it is trained: recomputed, compiled, then wrapped by the strategy.

Recomputation and compilation change it in place: names, parameters and checkpoints stay the same.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dtj.errors import RecipeError
from dtj.parallel import buffers, deferred
from dtj.parallel.strategy import LoadWeights, Strategy, blocks, check_model, unwrap
from dtj.settings import Settings
from dtj.telemetry import flops


def parallelize(
    model: nn.Module | Callable[[], nn.Module],
    strategy: Strategy,
    settings: Settings,
    *,
    load: LoadWeights | None,
    is_healing: bool,
    **ddp_options: bool,
) -> nn.Module:
    """The wrapped model, with the interface of the one that was passed. See Run.parallel and Strategy.add."""
    if not isinstance(model, nn.Module) and callable(model):
        is_deferred = load and strategy.loads_shards
        with deferred.without_weights() if is_deferred else contextlib.nullcontext():
            model = model()
    check_model(model)
    deferred.check_values(model, has_file=load is not None)
    if settings.recompute:
        recompute(model, blocks(model) or [model])
    if settings.compile:
        compile_in_place(to_compile(model, strategy), strategy.device)
    strategy.ddp_options = ddp_options
    return strategy.add(model, is_healing=is_healing, load=load)


def recompute(model: nn.Module, layers: Iterable[nn.Module]) -> None:
    """Activation checkpointing: keep only the input of each block, and run its forward again in backward.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016): a third more computation, activations
    of one block at a time. The second forward draws the same random numbers (dropout).
    A layer may change its buffers (batch norm, spectral norm): the second forward changes copies of them
    that were made before the first one.
    A model of transformers keeps the keys and values of each forward for the generation of text. The second
    forward would add its own to them, so `config.use_cache` becomes False.
    """
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False
    for block in layers:
        block.forward = partial(_checkpointed, block.forward, buffers.owners([block]))


def _checkpointed(forward: Callable[..., Any], owners: list[nn.Module], *inputs: Any, **named: Any) -> Any:
    """owners: modules of the block that have buffers which their forward may change."""
    is_plain = torch.compiler.is_compiling() or (not owners and flops.active is None)
    if is_plain or not torch.is_grad_enabled():
        return checkpoint(forward, *inputs, use_reentrant=False, **named)
    copies = buffers.copied(owners)

    def contexts() -> tuple[contextlib.AbstractContextManager[Any], contextlib.AbstractContextManager[Any]]:
        first, second = flops.active.contexts() if flops.active else 2 * (contextlib.nullcontext(),)
        return first, _both(second, buffers.replaced(owners, copies))

    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **named)


@contextlib.contextmanager
def _both(
    one: contextlib.AbstractContextManager[Any], other: contextlib.AbstractContextManager[Any]
) -> Iterator[None]:
    with one, other:
        yield


def to_compile(model: nn.Module, strategy: Strategy) -> list[nn.Module]:
    """The whole model, or its blocks if forward has collectives between them, which stay eager.

    Equal blocks are compiled only once. The whole takes longer to compile and runs faster: it includes the
    head, and the loss if that is computed in forward. On a CPU a compiled embedding adds up its gradients in
    any order, so that a resumed run would not be exact: there only blocks are compiled.
    """
    if strategy.sends_in_forward or strategy.device.type == "cpu":
        return blocks(model) or [model]
    return [model]


def compile_in_place(modules: Iterable[nn.Module], device: torch.device) -> None:
    """torch.compile each module. RecipeError on a CPU if there is no C++ compiler."""
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and not shutil.which(compiler):
        raise RecipeError(
            f"--compile on a CPU needs a C++ compiler, but {compiler!r} is not in the PATH",
            fix="install g++ (or set CXX), or omit --compile",
        )
    for module in modules:
        module.compile()


def is_compiled(model: nn.Module) -> bool:
    """True if the whole model was compiled in place, or is DDP's wrapper of such a model."""
    return unwrap(model)._compiled_call_impl is not None
