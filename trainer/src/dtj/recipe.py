"""`module:function key=value ...` -> Recipe: a plain function whose signature is its schema and its help.

This module imports no torch, so that a mistyped name or argument is told at once.
"""

import difflib
import importlib
import importlib.util
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtj.errors import RecipeError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to train, as parts that `loop.train` puts together; factories where the device matters.

    model         () -> module, on the CPU; every rank builds the same one
    data          map-style data set or stream; micro-batches have the structure of its items, pairs come as
                  mb.x, mb.y
    loss          (model, micro-batch) -> (), the mean loss of its samples
    optimizer     parameters -> optimizer
    global_batch  samples of one step over all ranks
    epochs        passes over the data
    steps         in place of epochs: global batches in all, for a stream that has no length
    tokens        of one sample, where it is text: the log then has tokens a second
    clip          largest norm that the gradients of a step may have; None lets them be
    schedule      (optimizer, steps in all) -> schedule, stepped once a step; None keeps the rate
    held_out      data set to evaluate on after each epoch; None evaluates nothing
    score         (model, micro-batch of k) -> (k,), averaged over held_out
    best          "highest" or "lowest": the checkpoint with that score is kept besides the newest ones
    metric        name under which that average is logged
    sample        model -> text that shows what it has learned, printed at the end; called on every rank
    seed          of weights, data order and augmentation
    """

    model: "Callable[[], nn.Module]"
    data: Any
    loss: "Callable[[nn.Module, Any], torch.Tensor]"
    optimizer: "Callable[[Iterable[nn.Parameter]], Optimizer]"
    global_batch: int
    epochs: int | None = None
    steps: int | None = None
    tokens: int | None = None
    clip: float | None = None
    schedule: "Callable[[Optimizer, int], LRScheduler] | None" = None
    held_out: Any = None
    score: "Callable[[nn.Module, Any], torch.Tensor] | None" = None
    best: str | None = None
    metric: str = "accuracy"
    sample: "Callable[[nn.Module], str] | None" = None
    seed: int = 0

    def __post_init__(self) -> None:
        given = {name: n for name, n in (("epochs", self.epochs), ("steps", self.steps)) if n is not None}
        if len(given) != 1:
            raise RecipeError(
                f"the recipe gives {' and '.join(given) or 'neither epochs nor steps'}",
                fix="give one of them, e.g. Recipe(epochs=5, ...)",
            )
        for name, count in given.items():
            if count < 1:
                raise RecipeError(f"{name} is {count}, expected at least 1", fix=f"correct {name}")
        if self.held_out is not None and self.score is None:
            raise RecipeError(
                "the recipe has held_out data but no score", fix="give Recipe(score=...), one value a sample"
            )
        if self.best not in {None, "highest", "lowest"}:
            raise RecipeError(f"best is {self.best!r}", fix="make it 'highest' or 'lowest', or leave it out")

    def count_steps(self, data: Any) -> int:
        """Global batches of the whole training on the feed of `run.data`."""
        return self.steps or (self.epochs or 0) * int(data.steps_per_epoch)


Function = Callable[..., Recipe]


def resolve(target: str) -> Function:
    """The function behind `package.module:function` or `./file.py:function`; else RecipeError."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise RecipeError(
            f"{target!r} does not name a recipe",
            fix="write module:function, e.g. dtj.recipes.digits:recipe, or ./my.py:recipe",
        )
    module = _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    found = getattr(module, name, None)
    if not inspect.isfunction(found):
        functions = [
            n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__
        ]
        raise RecipeError(
            f"{place} has no function {name!r}", fix=_suggest(name, functions) or "define it there"
        )
    return found


def arguments(function: Function, words: Sequence[str]) -> dict[str, Any]:
    """`key=value` words -> keyword arguments, each of the type that the signature asks for."""
    known = _parameters(function)
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise RecipeError(
                f"{word!r} is not an argument of a recipe", fix="write key=value, without spaces"
            )
        if key not in known:
            raise RecipeError(
                f"the recipe has no argument {key!r}", fix=_suggest(key, known) or "it takes none"
            )
        found[key] = _convert(text, known[key])
    missing = [n for n, p in known.items() if p.default is p.empty and n not in found]
    if missing:
        raise RecipeError(
            f"the recipe lacks {', '.join(missing)}",
            fix=" ".join(f"{n}=<{_type_name(known[n].annotation)}>" for n in missing),
        )
    return found


def describe(target: str, function: Function) -> str:
    """Help text of a recipe, made of its docstring and signature."""
    lines = [f"Usage: dtj train {target} [key=value ...]", ""]
    lines += [f"  {line}".rstrip() for line in (inspect.getdoc(function) or "").splitlines()]
    rows = []
    for name, parameter in _parameters(function).items():
        default = "required" if parameter.default is parameter.empty else f"default {parameter.default}"
        rows.append((name, _type_name(parameter.annotation), default))
    widths = [max(len(row[i]) for row in rows) for i in range(2)] if rows else []
    lines += ["", "Arguments:"] if rows else []
    lines += [f"  {name:<{widths[0]}}  {kind:<{widths[1]}}  {default}" for name, kind, default in rows]
    return "\n".join(lines)


def _from_name(name: str) -> types.ModuleType:
    if "" not in sys.path:  # as `python -m` has it: the user's own modules lie in the current folder
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise _not_found(name, error) from error


def _from_file(path: Path) -> types.ModuleType:
    if not path.is_file():
        raise RecipeError(
            f"there is no file {path}", fix=f"check the path; the current folder is {Path.cwd()}"
        )
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # as for any import: classes defined there can be pickled
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise _not_found(str(path), error) from error
    return module


def _not_found(wanted: str, error: ModuleNotFoundError) -> RecipeError:
    if error.name and (wanted == error.name or wanted.startswith(f"{error.name}.")):
        return RecipeError(
            f"there is no module {error.name!r}", fix="check the name, and that it is installed in this image"
        )
    return RecipeError(
        f"{wanted} needs the module {error.name!r}, which is not installed",
        fix=f"install what provides {error.name}",
    )


def _parameters(function: Function) -> dict[str, inspect.Parameter]:
    signature = inspect.signature(function)
    hints = typing.get_type_hints(function)
    return {n: p.replace(annotation=hints.get(n, p.annotation)) for n, p in signature.parameters.items()}


def _convert(text: str, parameter: inspect.Parameter) -> Any:
    kinds = _kinds(parameter)
    for kind in kinds:
        try:
            return _CONVERTERS[kind](text)
        except ValueError:
            continue
    raise RecipeError(
        f"{parameter.name} is {text!r}, expected {' or '.join(_WORDS[k] for k in kinds)}",
        fix=f"correct {parameter.name}={text}",
    )


def _kinds(parameter: inspect.Parameter) -> list[type]:
    """Types to try in turn: of the annotation, else of the default, else text."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        annotation = type(parameter.default) if parameter.default not in {parameter.empty, None} else str
    is_union = typing.get_origin(annotation) in {typing.Union, types.UnionType}
    options = typing.get_args(annotation) if is_union else (annotation,)
    unknown = [o for o in options if o not in _CONVERTERS]
    if unknown:
        raise RecipeError(
            f"argument {parameter.name} is a {_type_name(annotation)}, which the command line cannot give",
            fix="annotate it with int, float, bool, str, or one of them | None",
        )
    return sorted(options, key=list(_CONVERTERS).index)


def _none(text: str) -> None:
    if text.lower() != "none":
        raise ValueError(text)


def _bool(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(text)
    return text.lower() == "true"


# In the order in which a union's members are tried: the strictest first.
_CONVERTERS: dict[Any, Callable[[str], Any]] = {
    type(None): _none,
    bool: _bool,
    int: int,
    float: float,
    str: str,
}
_WORDS: dict[Any, str] = {
    type(None): "none",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}


def _type_name(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "text"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _suggest(word: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"did you mean {close[0]!r}? known: {', '.join(names)}"
    return f"known: {', '.join(names)}" if names else ""
