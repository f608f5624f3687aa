"""The public surface: names, commands, flags. A change here is a change for users."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import dtj
from dtj import cli, contract
from dtj.agent.activity import Activity
from dtj.agent.heartbeats import Heartbeat
from dtj.agent.protocol import PROTOCOL, CoordinatorState, Form, Hello
from dtj.agreement import SLOTS, Message
from dtj.heal import ProgramPoint
from tests.unit.dtj.conftest import Finished


def test_public_names() -> None:
    assert dtj.__all__ == [
        "Batch",
        "CheckpointError",
        "DtjError",
        "Pair",
        "Recipe",
        "RecipeError",
        "Run",
        "Stopped",
        "first_on_node",
        "init",
    ]
    assert all(getattr(dtj, name) for name in dtj.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'trainer'"):
        dtj.trainer  # noqa: B018


def test_public_verbs_of_a_run() -> None:
    verbs = {name for name in vars(dtj.Run) if not name.startswith("_")}
    assert verbs == {
        "backward",
        "clip",
        "data",
        "evaluate",
        "finish",
        "keep_best",
        "log",
        "parallel",
        "pause",
        "rank",
        "say",
        "size",
        "state",
        "step",
        "steps",
    }


def test_commands_and_flags() -> None:
    common = {
        *(
            "--async-save",
            "--check-every",
            "--checkpoint",
            "--compile",
            "--compress",
            "--devices",
            "--keep",
            "--log",
            "--log-every",
            "--max-restarts",
            "--mesh",
            "--metrics",
            "--micro-batch",
            "--parallel",
            "--peak-tflops",
            "--precision",
            "--recompute",
            "--sync",
            "--tf32",
            "--weights",
            "--workers",
            "--nproc",
            "--port",
            "--ranks",
            "--resume",
        ),
        *("--max-restarts", "--save-every", "--termination-log"),
    }
    commands = cli._dtj.commands
    flags = {
        name: {option for p in command.params if isinstance(p, click.Option) for option in p.opts}
        for name, command in commands.items()
    }
    assert flags == {
        "run": common | {"-m", "--module"},
        "train": common | {"-h", "--help"},
        "export": {"--part"},
        "plot": set(),
    }


@pytest.mark.parametrize(
    "argv",
    [["--help"], ["--version"], ["run", "--help"], ["train", "--help"], ["run", "nowhere.py"]],
    ids=" ".join,
)
def test_help_and_usage_errors_do_not_import_torch(argv: list[str]) -> None:
    code = f"""
import sys
from dtj.cli import main
try:
    main({argv!r})
finally:
    assert not {{"torch", "numpy", "rich"}} & set(sys.modules), "a slow import"
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
    )
    assert "slow import" not in ended.stderr
    assert ended.returncode == (78 if "nowhere.py" in argv else 0)


def test_python_m_dtj_is_the_command_dtj(finish: Callable[..., Finished]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "dtj", "--version"],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
    )
    assert ended.stdout == f"dtj, version {dtj.__version__}\n" == finish("--version").out


def test_exit_codes() -> None:
    assert dtj.RecipeError("x").exit_code == contract.EXIT_BAD_RECIPE == 78
    assert (contract.EXIT_STOPPED, contract.EXIT_PEER_LOST) == (75, 76)


def test_ranks_find_slow_imports_already_done(tmp_path: Path) -> None:
    """On a cold start, the modules that DDP and the optimizers import late would cost every rank seconds."""
    script = tmp_path / "script.py"
    script.write_text("import sys; print('torch._dynamo' in sys.modules)")
    ended = subprocess.run(
        [sys.executable, "-m", "dtj", "run", "--nproc", "2", script],
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
    )
    assert sorted(ended.stdout.splitlines()) == ["[rank 0] True", "[rank 1] True"]


def test_message_fields_change_only_with_the_protocol_number() -> None:
    """If this fails, increase PROTOCOL: pods of different builds would misread each other's messages."""
    fields = [
        *(Hello.__dataclass_fields__, CoordinatorState.__dataclass_fields__, Form.__dataclass_fields__),
        *(Heartbeat._fields, Activity._fields, ProgramPoint._fields, Message.__dataclass_fields__),
    ]
    assert (PROTOCOL, [" ".join(each) for each in fields], SLOTS) == (
        1,
        [
            "uid attempt replica incarnation healable state",
            "generation in_place without_progress unformed best_step replicas",
            "generation kept replicas gracefully connect_s",
            "generation step paused busy_time at",
            "generation is_stopped",
            "loops step is_over verb data_position",
            "stop finish save log not_finite interval values",
        ],
        17,
    )
