"""What a rank runs: a script, an installed command, a module, or a recipe through the built-in loop."""

import builtins
import runpy
import shlex
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from dtj.agent.rank.main import Program, is_first_life
from dtj.cli import modules, recipe_cli
from dtj.errors import RecipeError

# Programs and modules that start ranks.
_LAUNCHERS = (
    *("accelerate", "accelerate-launch", "deepspeed", "dtj", "horovodrun", "mpiexec", "mpirun", "torchrun"),
)
_LAUNCHER_MODULES = (
    *("accelerate.commands.launch", "deepspeed.launcher.runner"),
    *("torch.distributed.launch", "torch.distributed.run"),
)
_LOCAL_RANK = " (the local rank is in LOCAL_RANK, not in --local-rank)"


def script(path: str, words: Sequence[str]) -> Program:
    """Any Python file, as `python path words...` would run it; else the command of an installed package."""
    if not Path(path).is_file():
        return _command(path, words)

    def program() -> None:
        file = Path(path).absolute()
        sys.argv = [path, *words]
        modules.prefer(str(file.resolve().parent))
        main = _new_main()
        main.__file__, main.__loader__ = str(file), SourceFileLoader("__main__", str(file))
        vars(main)["__cached__"] = None
        try:
            code = compile(file.read_bytes(), file, "exec")
        except SyntaxError as error:
            if error.lineno is None:
                raise RecipeError(
                    f"{path} is not a Python file: {error.msg}",
                    fix="give the script that trains; dtj run starts no other programs",
                ) from error
            if not is_first_life():
                raise
            what = f"{path}, line {error.lineno}: {type(error).__name__}: {error.msg}"
            raise RecipeError(what, fix=f"correct the script: {(error.text or '').strip()}") from error
        exec(code, vars(main))

    return program


def _command(name: str, words: Sequence[str]) -> Program:
    """What a package installs under this name, as its console script calls it."""
    if name in _LAUNCHERS:
        raise _two_launchers(name, words)
    if name in ("python", "python3"):
        raise RecipeError(
            f"dtj run runs Python files, and {name} is a program",
            fix=f"leave out {name}: dtj run {shlex.join(words) or 'train.py'}",
        )
    found = next(iter(entry_points(group="console_scripts", name=name)), None)
    if found is None:
        raise RecipeError(
            f"script not found: {name}", fix=f"check the path; the current folder is {Path.cwd()}"
        )

    def program() -> None:
        sys.argv = [name, *words]
        _new_main()
        sys.exit(found.load()())

    return program


def module(name: str, words: Sequence[str]) -> Program:
    """A module, as `python -m name words...` would run it. Found in the rank, since that imports packages."""
    if name in _LAUNCHER_MODULES:
        raise _two_launchers(f"-m {name}", words)

    def program() -> None:
        sys.argv = [name, *words]
        modules.prefer("")
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


def _two_launchers(name: str, words: Sequence[str]) -> RecipeError:
    """Each rank would start ranks, which do not find each other."""
    at = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    program = "train.py" if at is None else shlex.join(words[at:])
    rank = _LOCAL_RANK if name.endswith("distributed.launch") else ""
    return RecipeError(
        f"{name} starts the ranks, and so does dtj run",
        fix=f"leave it out, with its options: dtj run {program}{rank}",
    )


def _new_main() -> ModuleType:
    """The module `__main__` of this process. It stays until the end: threads and exit functions may need it,
    to pickle an object of a class of the script, for example.
    """
    sys.modules["__main__"] = found = ModuleType("__main__")
    # As Python does it; `exec` would set a dict of builtins.
    vars(found)["__builtins__"] = builtins
    if sys.version_info < (3, 14):  # which no longer sets it
        found.__annotations__ = {}
    return found
