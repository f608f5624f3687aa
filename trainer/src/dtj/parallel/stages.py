"""A model -> the stages of a pipeline: which consecutive pieces a rank runs, and which parameters they use.

What a model consists of it says itself:

    def pipeline_plan(self) -> list[Piece]    forward as a chain of pieces, each with the modules that it uses
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from dtj.errors import RecipeError

Piece = tuple[Callable[[torch.Tensor], torch.Tensor], Sequence[nn.Module]]


def split_into_stages(model: nn.Module, stages: int) -> list[list[Piece]]:
    """The model's pieces by stage, such that the stage with most parameters has as few as possible."""
    if not hasattr(model, "pipeline_plan"):
        raise RecipeError(
            f"--parallel pp: {type(model).__name__} does not say of what it consists",
            fix="give it pipeline_plan(self) -> [(callable, modules), ...], or use fsdp",
        )
    pieces: list[Piece] = model.pipeline_plan()  # type: ignore[operator]
    if len(pieces) < stages:
        raise RecipeError(
            f"pp={stages} is more than the {len(pieces)} pieces of {type(model).__name__}",
            fix=f"use at most --mesh pp={len(pieces)}",
        )
    sizes = [sum(p.numel() for m in modules for p in m.parameters()) for _, modules in pieces]
    ends = split_evenly(sizes, stages)
    return [pieces[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def split_evenly(sizes: Sequence[int], parts: int) -> list[int]:
    """Ends of `parts` runs of neighbours, none empty, whose largest sum is the smallest possible."""
    count = len(sizes)
    # best[k][i]: (largest sum, end of the run before) for the first i pieces in k runs
    best = [[(float("inf"), 0)] * (count + 1) for _ in range(parts + 1)]
    best[0][0] = (0.0, 0)
    for k in range(1, parts + 1):
        for i in range(k, count + 1):
            best[k][i] = min((max(best[k - 1][j][0], sum(sizes[j:i])), j) for j in range(k - 1, i))
    ends = [count]
    for k in range(parts, 1, -1):
        ends.append(best[k][ends[-1]][1])
    return ends[::-1]


def users_of(stages: Sequence[Sequence[Piece]]) -> dict[nn.Parameter, set[int]]:
    """Parameter -> stages whose pieces use it, in the order of the model."""
    found: dict[nn.Parameter, set[int]] = {}
    for number, pieces in enumerate(stages):
        for _, modules in pieces:
            for module in modules:
                for parameter in module.parameters():
                    found.setdefault(parameter, set()).add(number)
    return found


def keep_own(
    model: nn.Module, users: dict[nn.Parameter, set[int]], *, stage: int, device: torch.device
) -> None:
    """Own weights go to the device in place; others become meta tensors, so that names and numbers stay."""
    stray = [name for name, p in model.named_parameters() if p not in users]
    if stray:
        raise RecipeError(
            f"{stray[0]} belongs to no piece of pipeline_plan", fix="name the module that holds it in a piece"
        )
    emptied: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if stage in users[parameter]:
                parameter.data = parameter.data.to(device)
            else:
                if parameter not in emptied:
                    emptied[parameter] = nn.Parameter(
                        torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
                    )
                module.register_parameter(name, emptied[parameter])
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(device))
