"""`module:function key=value ...` -> Recipe. The function's signature defines its arguments and its help.

This module does not import torch, so errors in names and arguments are reported without delay.
"""

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dtj.cli import modules
from dtj.errors import RecipeError
from dtj.recipe import Recipe

Function = Callable[..., Recipe]


def build(target: str, words: Sequence[str]) -> Recipe:
    """Call the function that `target` names with `key=value` words; RecipeError if it returns no Recipe."""
    function = resolve(target)
    found = function(**arguments(function, words))
    if not isinstance(found, Recipe):
        raise RecipeError(
            f"{target} returned a {type(found).__name__}, expected a dtj.Recipe", fix="return dtj.Recipe(...)"
        )
    return found


def resolve(target: str) -> Function:
    """The function named by `package.module:function` or `./file.py:function`; else RecipeError."""
    source, _, name = target.rpartition(":")
    if not source or not name:
        raise RecipeError(
            f"{target!r} does not name a recipe",
            fix="write module:function, e.g. dtj.recipes.digits:recipe, or ./my.py:recipe",
        )
    module = modules.from_file(Path(source)) if source.endswith(".py") else modules.from_name(source)
    found = getattr(module, name, None)
    if not inspect.isfunction(found):
        functions = [
            n
            for n, f in vars(module).items()
            if inspect.isfunction(f) and f.__module__ == module.__name__ and not n.startswith("_")
        ]
        raise RecipeError(
            f"{source} has no function {name!r}", fix=_suggest(name, functions) or "define the function there"
        )
    return found


def arguments(function: Function, words: Sequence[str]) -> dict[str, Any]:
    """`key=value` words -> keyword arguments, converted to the types of the signature."""
    known = _parameters(function)
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise RecipeError(
                f"{word!r} is not of the form key=value", fix="write key=value without spaces, e.g. epochs=5"
            )
        if key not in known:
            raise RecipeError(
                f"the recipe has no argument {key!r}",
                fix=_suggest(key, known) or "the recipe has no arguments",
            )
        found[key] = _convert(text, known[key])
    missing = [n for n, p in known.items() if p.default is p.empty and n not in found]
    if missing:
        raise RecipeError(
            f"the recipe needs values for {', '.join(missing)}",
            fix="add " + " ".join(f"{n}=<{_type_name(known[n].annotation)}>" for n in missing),
        )
    return found


def describe(target: str, function: Function) -> str:
    """Help text of a recipe, from its docstring and signature."""
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


def _parameters(function: Function) -> dict[str, inspect.Parameter]:
    """The parameters that can be passed by name."""
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise RecipeError(
            f"an annotation of {function.__name__} cannot be read: {error}",
            fix="import the type at run time, not only under `if TYPE_CHECKING`",
        ) from error
    return {
        n: p.replace(annotation=hints.get(n, p.annotation))
        for n, p in inspect.signature(function).parameters.items()
        if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}
    }


def _convert(text: str, parameter: inspect.Parameter) -> Any:
    kinds = _kinds(parameter)
    for kind in kinds:
        try:
            return _TYPES[kind][0](text)
        except ValueError:
            continue
    raise RecipeError(
        f"{parameter.name} is {text!r}, expected {' or '.join(_TYPES[k][1] for k in kinds)}",
        fix=f"correct {parameter.name}={text}",
    )


def _kinds(parameter: inspect.Parameter) -> list[type]:
    """Types to try in order: of the annotation, else of the default, else text."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        has_type = parameter.default is not None and parameter.default is not parameter.empty
        annotation = type(parameter.default) if has_type else str
    is_union = typing.get_origin(annotation) in {typing.Union, types.UnionType}
    options = typing.get_args(annotation) if is_union else (annotation,)
    unknown = [o for o in options if o not in _TYPES]
    if unknown:
        raise RecipeError(
            f"argument {parameter.name} is a {_type_name(annotation)}, which the command line cannot pass",
            fix="annotate it with int, float, bool or str, or with one of these | None",
        )
    return sorted(options, key=list(_TYPES).index)


def _none(text: str) -> None:
    if text.lower() != "none":
        raise ValueError(text)


def _bool(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(text)
    return text.lower() == "true"


# Converter and description. The members of a union are tried in this order: the strictest first.
_TYPES: dict[Any, tuple[Callable[[str], Any], str]] = {
    type(None): (_none, "none"),
    bool: (_bool, "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "text"),
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
