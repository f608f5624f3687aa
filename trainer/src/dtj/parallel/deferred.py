"""Models that are built and sharded on the meta device: a rank only allocates its shards."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dtj.errors import RecipeError


@contextlib.contextmanager
def without_weights() -> Iterator[None]:
    """Context in which models are built with parameters on the meta device, which takes no memory.

    Buffers are real, since the files of a model need not have them (masks, frequencies of rotary embeddings).
    """

    def to_meta(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:  # a tied one is registered twice, and stays one
            return None
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)

    hook = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]  # it may return one
    try:
        yield
    finally:
        hook.remove()


def allocate(model: nn.Module, device: torch.device) -> None:
    """Give parameters on the meta device memory, without values. Tied ones stay tied, shards stay shards."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.is_meta:
                if parameter not in made:
                    empty = torch.empty_like(parameter, device=device)
                    made[parameter] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
                module.register_parameter(name, made[parameter])


def check_values(model: nn.Module, *, has_file: bool) -> None:
    """Raise RecipeError for a model on the meta device that will get no values."""
    parameters = [] if has_file else list(model.named_parameters())
    for name, tensor in (*parameters, *model.named_buffers()):
        if tensor.is_meta:
            raise RecipeError(
                f"{name} is on the meta device, so it has no value",
                fix="build the model on the CPU, or leave that to run.parallel: with --weights, "
                "run.parallel(lambda: Model()) uses the meta device for parameters only",
            )
