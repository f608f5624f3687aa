"""What a rank runs: a script, a module, or a recipe through the built-in loop."""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from dtj.agent.rank.main import Program
from dtj.cli import modules, recipe_cli
from dtj.errors import RecipeError


def script(path: str, words: Sequence[str]) -> Program:
    """Any Python file, as `python path words...` would run it."""
    if not Path(path).is_file():
        raise RecipeError(
            f"script not found: {path}", fix=f"check the path; the current folder is {Path.cwd()}"
        )

    def program() -> None:
        file = Path(path).absolute()
        sys.argv = [path, *words]
        sys.path.insert(0, str(file.resolve().parent))
        main = _new_main()
        main.__file__ = str(file)
        exec(compile(file.read_bytes(), file, "exec"), vars(main))

    return program


def module(name: str, words: Sequence[str]) -> Program:
    """A module, as `python -m name words...` would run it. Found in the rank, since that imports packages."""

    def program() -> None:
        sys.argv = [name, *words]
        sys.path.insert(0, "")
        modules.check_runnable(name)
        _new_main()
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # what Python itself calls

    return program


def recipe(target: str, words: Sequence[str]) -> Program:
    """`module:function` with its key=value words, trained by the built-in loop.

    Imported in the rank, not in the agent: the user's code may start threads or use the accelerator, and
    neither survives a fork.
    """

    def program() -> None:
        from dtj.loop import train  # noqa: PLC0415 - loads torch, which the agent has loaded by then

        train(recipe_cli.build(target, words))

    return program


def _new_main() -> ModuleType:
    """The module `__main__` of this process. It stays until the end: threads and exit functions may need it,
    to pickle an object of a class of the script, for example.
    """
    sys.modules["__main__"] = found = ModuleType("__main__")
    return found
