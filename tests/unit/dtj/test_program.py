"""What `dtj run` refuses to run, and what to write instead."""

import builtins
import importlib
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from dtj.cli import modules, program
from dtj.errors import RecipeError


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program changes as it begins is as before after the test."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["accelerate", "launch", "--mixed_precision", "bf16", "train.py", "--lr", "1"],
            "accelerate starts the ranks, and so does dtj run\n"
            "  fix: leave it out, with its options: dtj run train.py --lr 1",
        ),
        (["torchrun", "-m", "pkg.train"], "torchrun starts the ranks, and so does dtj run"),
        (["deepspeed", "train.py"], "deepspeed starts the ranks"),
        (["python", "train.py"], "python is a program\n  fix: leave out python: dtj run train.py"),
        (["nowhere.py"], "script not found: nowhere.py"),
        (["dtj", "train", "a:b"], "dtj starts the ranks, and so does dtj run"),
    ],
)
def test_program_that_is_not_a_script(words: list[str], message: str) -> None:
    with pytest.raises(RecipeError) as raised:
        program.script(words[0], words[1:])
    assert message in f"{raised.value.what}\n  fix: {raised.value.fix}"


@pytest.mark.parametrize(
    ("name", "missing"),
    [("json.nosuch", "json.nosuch"), ("nosuch.deep", "nosuch"), ("json", "json.__main__")],
    ids=["no such submodule", "no such package", "a package without a program"],
)
def test_module_that_cannot_be_run_is_named(name: str, missing: str) -> None:
    with pytest.raises(RecipeError, match=f"there is no module '{missing}'"):
        modules.check_runnable(name)


@pytest.mark.usefixtures("restored")
def test_script_with_a_syntax_error_is_retried_only_in_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.py"
    file.write_text("import os\nx = (1,\n")
    with pytest.raises(RecipeError, match=r"train\.py, line 2: SyntaxError: '\(' was never closed") as raised:
        program.script(str(file), [])()
    assert raised.value.fix == "correct the script: x = (1,"
    monkeypatch.setenv("DTJ_GENERATION", "2")
    with pytest.raises(SyntaxError, match="was never closed"):
        program.script(str(file), [])()


@pytest.mark.usefixtures("restored")
def test_program_that_is_not_python_is_called_by_its_name(tmp_path: Path) -> None:
    """As /bin/sh, which has no line that could be shown."""
    file = tmp_path / "sh"
    file.write_bytes(b"\x7fELF\x02\0\0")
    with pytest.raises(RecipeError, match=r"sh is not a Python file"):
        program.script(str(file), [])()


@pytest.mark.usefixtures("restored")
def test_command_of_an_installed_package_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As litgpt: its console script is not in the current folder."""

    def main() -> str:
        return f"ran {sys.argv}"

    monkeypatch.setattr(program, "tune", main, raising=False)
    entries = EntryPoints([EntryPoint("tune", "dtj.cli.program:tune", "console_scripts")])
    monkeypatch.setattr(program, "entry_points", entries.select)
    with pytest.raises(SystemExit, match=r"ran \['tune', '--lr', '1'\]"):
        program.script("tune", ["--lr", "1"])()


@pytest.mark.parametrize("module", ["torch.distributed.run", "accelerate.commands.launch"])
def test_module_that_starts_ranks_is_refused(module: str) -> None:
    with pytest.raises(RecipeError, match=f"-m {module} starts the ranks, and so does dtj run"):
        program.module(module, ["train.py"])


def test_local_rank_of_torch_launch_is_in_the_environment() -> None:
    with pytest.raises(RecipeError) as raised:
        program.module("torch.distributed.launch", ["--nproc_per_node=2", "train.py", "--lr", "1"])
    assert raised.value.fix.endswith(
        "dtj run train.py --lr 1 (the local rank is in LOCAL_RANK, not in --local-rank)"
    )


@pytest.mark.parametrize("own", ["calendar.py", "calendar/__init__.py"])
@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("made", [program.script, program.module])
def test_program_imports_its_own_modules_of_names_that_the_agent_has_imported(
    made: Callable[..., Callable[[], None]], own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under python, where its folder is first on the path; not those that Python itself starts with."""
    (tmp_path / own).parent.mkdir(exist_ok=True)
    (tmp_path / own).write_text("mine = True")
    (tmp_path / "os.py").write_text("mine = True")
    (tmp_path / "takes.py").write_text("import calendar, os; os.environ['MINE'] = str(calendar.mine)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINE", "")
    monkeypatch.setitem(sys.modules, "calendar", importlib.import_module("calendar"))
    made("takes.py" if made is program.script else "takes", [])()
    assert os.environ["MINE"] == "True"


def test_modules_of_the_agent_are_shared_with_a_program_whose_folder_has_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a folder has their name, but no module, and if the folder of the program cannot be read."""
    (tmp_path / "calendar").mkdir()
    (tmp_path / "own.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {**sys.modules}
    for folder in (tmp_path, tmp_path / "gone"):
        modules.prefer(str(folder))
        assert sys.path[0] == str(folder)
    assert sys.modules == before


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("made", [program.script, program.module])
def test_builtins_of_a_program_are_a_module_as_under_python(
    made: Callable[..., Callable[[], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs set names there: `print` of rank 0 only, or `profile` where no profiler has set it."""
    (tmp_path / "sets.py").write_text("__builtins__.of_program = 1; __builtins__.of_program += of_program")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(builtins, "of_program", 0, raising=False)  # removed afterwards
    made("sets.py" if made is program.script else "sets", [])()
    assert vars(builtins)["of_program"] == 2
