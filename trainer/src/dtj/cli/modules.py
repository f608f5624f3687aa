"""Import the user's modules by name or by file; RecipeError if a module or an import of it is missing."""

import importlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from dtj.errors import RecipeError

_OF_PYTHON = ("built-in", "frozen")  # Python has imported these before it knows a program
_KEPT = {"dtj", "numpy", "torch"}  # cannot be imported twice, or must be the agent's


def from_name(name: str) -> ModuleType:
    """Import a module by name, also from the current folder."""
    if "" not in sys.path:  # as `python -m` does: the user's modules are in the current folder
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise _not_found(name, error) from error


def from_file(path: Path) -> ModuleType:
    """Import a .py file; afterwards the other modules in its folder can be imported, too."""
    if not path.is_file():
        raise RecipeError(
            f"there is no file {path}", fix=f"check the path; the current folder is {Path.cwd()}"
        )
    taken = getattr(sys.modules.get(path.stem), "__file__", None) or ""
    if path.stem in sys.modules and Path(taken).resolve() != path.resolve():
        raise RecipeError(
            f"{path} has the same name as the module {path.stem!r}, which is already imported",
            fix=f"rename the file, e.g. to my_{path.name}",
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


def prefer(folder: str) -> None:
    """Put a folder first on the path, as Python does with that of a program.

    The agent has imported modules before. Those of which the folder has another one are forgotten, so that
    the program imports its own, such as a package `cuda`. Who has imported the others keeps them.
    """
    sys.path.insert(0, folder)
    for name in _names_in(folder) - _KEPT:
        taken = getattr(sys.modules.get(name), "__spec__", None)
        if taken is None or taken.origin in _OF_PYTHON:
            continue
        own = PathFinder.find_spec(name, [folder])
        if own is None or own.origin is None:
            continue
        if os.path.realpath(own.origin) != os.path.realpath(taken.origin or ""):
            for each in [each for each in sys.modules if each.partition(".")[0] == name]:
                del sys.modules[each]


def _names_in(folder: str) -> set[str]:
    """The modules that a folder may have.

    Not all names in sys.modules: to read those writes their reference counts, in 1,800 pages of memory that a
    rank shares with its agent, and each write copies a page: 10 ms of CPU time.
    """
    try:
        return {each.name.partition(".")[0] for each in Path(folder).iterdir()}
    except OSError:  # Python cannot import from it either
        return set()


def check_runnable(name: str) -> None:
    """Raise RecipeError if `python -m name` would find no module to run."""
    try:
        found = importlib.util.find_spec(name)
        if found is not None and found.submodule_search_locations is not None:  # a package
            name += ".__main__"
            found = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        raise _not_found(name, error) from error
    if found is None:
        raise _no_module(name)


def _not_found(wanted: str, error: ModuleNotFoundError) -> RecipeError:
    if error.name and (wanted == error.name or wanted.startswith(f"{error.name}.")):
        return _no_module(error.name)
    return RecipeError(
        f"{wanted} needs the module {error.name!r}, which is not installed",
        fix=f"install the package that provides {error.name}",
    )


def _no_module(name: str) -> RecipeError:
    return RecipeError(
        f"there is no module {name!r}", fix="check the name, and that it is installed in this image"
    )
