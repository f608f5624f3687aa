"""Split a model into the stages of a pipeline: the consecutive pieces of each rank, and their parameters.

The model defines its pieces:

    def pipeline_plan(self) -> list[Piece]    forward as a chain of pieces, each with the modules that it uses
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from dtj.errors import RecipeError
from dtj.parallel import deferred

Piece = tuple[Callable[[torch.Tensor], torch.Tensor], Sequence[nn.Module]]


def split_into_stages(model: nn.Module, stages: int) -> list[list[Piece]]:
    """The model's pieces for each stage, such that the largest stage has as few parameters as possible."""
    if not hasattr(model, "pipeline_plan"):
        raise RecipeError(
            f"{type(model).__name__} has no pipeline_plan(), so it cannot be split into stages",
            fix="define pipeline_plan(self) -> [(callable, modules), ...], or use --parallel fsdp",
        )
    pieces: list[Piece] = model.pipeline_plan()  # type: ignore[operator]
    if (most := len(pieces)) < stages:
        raise RecipeError(
            f"--mesh pp={stages}: {type(model).__name__} has only {most} pieces",
            fix=f"start at most {most} processes, or use --parallel pp+ddp and at most --mesh pp={most}",
        )
    sizes = [sum(p.numel() for m in modules for p in m.parameters()) for _, modules in pieces]
    ends = split_evenly(sizes, stages)
    return [pieces[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def split_evenly(sizes: Sequence[int], stages: int) -> list[int]:
    """Split `sizes` into consecutive groups, none empty, whose largest sum is as small as possible.

    Returns the end index of each group.
    """
    count = len(sizes)
    # best[k][i]: (largest sum, end of the group before) for the first i pieces in k groups
    best = [[(float("inf"), 0)] * (count + 1) for _ in range(stages + 1)]
    best[0][0] = (0.0, 0)
    for k in range(1, stages + 1):
        for i in range(k, count + 1):
            best[k][i] = min((max(best[k - 1][j][0], sum(sizes[j:i])), j) for j in range(k - 1, i))
    ends = [count]
    for k in range(stages, 1, -1):
        ends.append(best[k][ends[-1]][1])
    return ends[::-1]


def modules_of(pieces: Sequence[Piece]) -> list[nn.Module]:
    """All modules that these pieces use."""
    listed = (module for _, modules in pieces for module in modules)
    return list(dict.fromkeys(each for module in listed for each in module.modules()))


def users_of(stages: Sequence[Sequence[Piece]]) -> dict[nn.Parameter, set[int]]:
    """Parameter -> stages whose pieces use it, in the order of the model."""
    found: dict[nn.Parameter, set[int]] = {}
    for number, pieces in enumerate(stages):
        for module in modules_of(pieces):
            for parameter in module.parameters(recurse=False):
                found.setdefault(parameter, set()).add(number)
    return found


def keep_own(
    model: nn.Module, users: dict[nn.Parameter, set[int]], *, stage: int, device: torch.device
) -> None:
    """Move this stage's weights to the device. Others become meta tensors: names and numbers stay the same.

    RecipeError for a parameter that is in no piece.
    """
    stray = [name for name, p in model.named_parameters() if p not in users]
    if stray:
        raise RecipeError(
            f"{stray[0]} is not in any piece of pipeline_plan()",
            fix="list the module that holds it in a piece",
        )
    deferred.replace_parameters(
        model.modules(), lambda p: None if stage in users[p] else torch.empty_like(p, device="meta")
    )
    deferred.move_values(model, device)
