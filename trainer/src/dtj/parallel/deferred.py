"""Models that are built and sharded on the meta device: a rank only allocates its shards."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

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
    replace_parameters(model.modules(), lambda p: torch.empty_like(p, device=device) if p.is_meta else None)


def replace_parameters(
    modules: Iterable[nn.Module], change: Callable[[nn.Parameter], torch.Tensor | None]
) -> None:
    """Replace the modules' own parameters, but those for which there is None. Tied ones stay tied."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in modules:
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter not in made and (found := change(parameter)) is not None:
                made[parameter] = nn.Parameter(found, requires_grad=parameter.requires_grad)
            if parameter in made:
                module.register_parameter(name, made[parameter])


def move_values(model: nn.Module, device: torch.device) -> None:
    """Move a model in place; what is on the meta device stays there."""
    model._apply(lambda value: value if value.is_meta else value.to(device))  # type: ignore[no-untyped-call]


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
