"""Turns a function of a script or notebook into a program of its own: its source, and what that uses."""

import ast
import builtins
import contextlib
import importlib.util
import inspect
import linecache
import site
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from dtj_client.errors import ClientError

_FUTURE = "from __future__ import annotations"
_FIX = "import or compute it inside the function, pass it as an argument, or submit a file"


def as_program(function: Callable[..., object], *arguments: object, with_folder: bool = False) -> str:
    """Return a program that calls the function with the arguments.

    It has the function's source and what that refers to: imports, plain values such as numbers and strings,
    and the source of other functions and classes that are not part of a package. Raises ClientError, and
    names what cannot be sent.

    with_folder   the modules of the user's folder go along in another way
    """
    if not isinstance(function, FunctionType | BuiltinFunctionType | type):
        raise ClientError(f"cannot send {_shown(function)}", "write a function with def that calls it")
    for each in arguments:
        if not _is_plain(each):
            raise ClientError(
                f"cannot send an argument: {_shown(each)}",
                "pass numbers, strings, lists and dictionaries of these",
            )
    call = f"{function.__name__}({', '.join(map(repr, arguments))})"
    try:
        inspect.signature(function, follow_wrapped=False).bind(*arguments)
    except ValueError:  # Python knows no signature of it
        pass
    except TypeError as error:
        raise ClientError(f"cannot call {call}: {error}", "pass its arguments after the function") from error
    parts: dict[str, str] = {}
    _collect(function.__name__, function, parts, with_folder)
    imports = [each for each in parts.values() if each.startswith(("import ", "from "))]
    others = [each for each in parts.values() if each not in imports]
    main = f'if __name__ == "__main__":\n    {call}'
    return "\n\n".join([_FUTURE, "\n".join(imports), *others, main]) + "\n"


def _collect(name: str, value: Any, parts: dict[str, str], with_folder: bool) -> None:
    """Add the text that defines a name to `parts`, after what it needs."""
    if isinstance(value, ModuleType):
        _refuse_local(name, value.__name__, with_folder)
        parts[name] = f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
    elif _is_plain(value):
        parts[name] = f"{name} = {value!r}"
    elif _is_importable(name, value):
        _refuse_local(name, value.__module__, with_folder)
        original = getattr(value, "__name__", name)
        parts[name] = f"from {value.__module__} import {original}" + (
            "" if original == name else f" as {name}"
        )
    elif not isinstance(value, FunctionType | type):
        fix = "make it inside the function, or submit a file"
        raise ClientError(f"cannot send {name}, {_shown(value)}, which the function uses", fix)
    else:
        source = _source(name, value)
        scope = vars(sys.modules[value.__module__])
        parts[name] = ""  # ends the recursion of functions that call each other
        annotated = [each for each in _names_annotated(source) if _can_import(each, scope.get(each))]
        for used in (*_names_used(source), *annotated):
            if used not in scope or _is_of_python(used, scope[used]):
                continue
            if used not in parts:
                _collect(used, scope[used], parts, with_folder)
            for dotted in sorted(_submodules(source, used, scope[used])):
                parts[f"import {dotted}"] = f"import {dotted}"
        del parts[name]  # to come behind what it uses
        parts[name] = source if value.__name__ == name else f"{source}\n{name} = {value.__name__}"


def _source(name: str, value: Any) -> str:
    """The text of a function or class that stands alone."""
    if value.__name__ == "<lambda>":
        raise ClientError("cannot send a lambda", "write a function with def")
    if isinstance(value, FunctionType) and value.__code__.co_freevars:
        free = ", ".join(value.__code__.co_freevars)
        raise ClientError(f"cannot send {name}: it uses {free} of the function around it", _FIX)
    if hasattr(value, "__wrapped__"):
        raise ClientError(f"cannot send {name}: it is wrapped by a decorator", "send the function without it")
    try:
        source = textwrap.dedent(_text(value)).rstrip()
    except (OSError, TypeError) as error:
        raise ClientError(
            f"cannot send {name}: Python has no source of it", "define it in a file or in a notebook's cell"
        ) from error
    (definition,) = ast.parse(source).body
    if not isinstance(definition, ast.FunctionDef | ast.ClassDef):
        raise ClientError(f"cannot send {name}: it is not a plain function", "write it with def")
    return source


def _text(value: Any) -> str:
    """The lines of a function or class. Raises OSError or TypeError.

    inspect does not know in which cell of a notebook a class is. IPython puts the cells into linecache, where
    one that runs again keeps its first place, and into _ih in the order in which they run.
    """
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        cells = [
            each[2] for name, each in linecache.cache.items() if len(each) == 4 and not Path(name).exists()
        ]
        ran = [
            each.splitlines(keepends=True) for each in getattr(sys.modules.get(value.__module__), "_ih", ())
        ]
        methods = [each for each in vars(value).values() if isinstance(each, FunctionType)]
        own = [each for each in methods if each.__qualname__.startswith(f"{value.__qualname__}.")]
        its = [linecache.getlines(each.__code__.co_filename) for each in own]
        for lines in reversed([*cells, *ran, *its]):  # the last counts
            with contextlib.suppress(SyntaxError):  # of another cell
                for node in reversed(ast.parse("".join(lines)).body):
                    if isinstance(node, ast.ClassDef) and node.name == value.__qualname__:
                        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                        return "".join(lines[first - 1 : node.end_lineno])
        raise


def _names_used(source: str) -> Iterator[str]:
    """Yield the names that a definition takes from its module."""
    whole = symtable.symtable(f"{_FUTURE}\n{source}", "<function>", "exec")  # annotations need no names
    tables = [whole]
    while tables:
        table = tables.pop()
        tables.extend(table.get_children())
        for symbol in table.get_symbols():
            outer = not symbol.is_assigned() if table is whole else symbol.is_global()
            if outer and symbol.is_referenced():
                yield symbol.get_name()


def _names_annotated(source: str) -> list[str]:
    """The names in the types of a class's fields: dataclasses reads some of them, such as ClassVar."""
    classes = (each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.ClassDef))
    types = (each.annotation for kind in classes for each in kind.body if isinstance(each, ast.AnnAssign))
    return sorted({each.id for of in types for each in ast.walk(of) if isinstance(each, ast.Name)})


def _is_of_python(name: str, value: object) -> bool:
    """Whether another program has the name without a definition; IPython defines open, exit and quit."""
    if not hasattr(builtins, name):
        return False
    is_same = getattr(value, "__wrapped__", value) is getattr(builtins, name)
    return is_same or name.startswith("__") or type(value).__module__.startswith("IPython.")


def _submodules(source: str, name: str, value: object) -> set[str]:
    """The modules that a definition names within a package, as xml.dom: `import xml` may not load them."""
    if not isinstance(value, ModuleType):
        return set()
    said = {_dotted(node) for node in ast.walk(ast.parse(source))}
    within = {f"{value.__name__}{each.removeprefix(name)}" for each in said if each.startswith(f"{name}.")}
    return {each for each in within if isinstance(sys.modules.get(each), ModuleType)}


def _dotted(node: ast.AST) -> str:
    """The text of an expression such as xml.dom.minidom; of another one empty."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name) if before := _dotted(value):
            return f"{before}.{name}"
    return ""


def _is_plain(value: object) -> bool:
    """Whether Python reads the value's repr back as the same value."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def _can_import(name: str, value: Any) -> bool:
    """Whether another process gets what a name stands for by an import."""
    if isinstance(value, ModuleType):
        return _is_installed(value.__name__)
    return _is_importable(name, value)


def _is_importable(name: str, value: Any) -> bool:
    """The same for what is not a module itself."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", name)
    if module in (None, "__main__") or getattr(sys.modules.get(module), name, None) is not value:
        return False
    return _is_installed(module)


def _is_installed(module: str) -> bool:
    """Whether a module belongs to Python or to an installed package, and not to a folder of the user."""
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names or root == "dtj":  # the images have dtj
        return True
    try:
        found = importlib.util.find_spec(root)
    except ValueError:  # __main__ of a notebook
        return False
    places = [found.origin, *(found.submodule_search_locations or ())] if found else []
    paths = [Path(each).resolve() for each in places if each and Path(each).exists()]
    installed = [Path(each).resolve() for each in (*site.getsitepackages(), site.getusersitepackages())]
    return any(path.is_relative_to(folder) for path in paths for folder in installed)


def _refuse_local(name: str, module: str, with_folder: bool) -> None:
    if not with_folder and not _is_installed(module):
        raise ClientError(
            f"cannot send {name}: the module {module} is not part of an installed package",
            "pass folder='.' to send the files of this folder too",
        )


def _shown(value: object) -> str:
    return f"a value of type {type(value).__name__}"
