"""The public surface: names, commands, flags. A change here is a change for users."""

import click
import pytest

import dtj
from dtj import contract
from dtj.agent.wire import facts
from dtj.agent.wire.outcome import Ending
from dtj.agent.wire.probe import Probe
from dtj.agent.wire.protocol import PROTOCOL, CoordinatorState, Form, Hello, Keeper, RankState
from dtj.agent.wire.signs import Activity, Heartbeat
from dtj.cli import commands as cli
from dtj.cli import of_submit, torchrun
from dtj.healing.handover import ProgramPoint
from dtj.ranks.agreement import Message


def test_public_names() -> None:
    assert dtj.__all__ == [
        "EMA",
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
        "sinks",
    ]
    assert all(getattr(dtj, name) for name in dtj.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'trainer'"):
        dtj.trainer  # noqa: B018


def test_public_verbs_of_a_run() -> None:
    verbs = {name for name in vars(dtj.Run) if not name.startswith("_")}
    assert verbs == {
        "autocast",
        "backward",
        "clip",
        "data",
        "evaluate",
        "finish",
        "keep_best",
        "loader",
        "log",
        "on_line",
        "parallel",
        "pause",
        "rank",
        "reduce",
        "say",
        "size",
        "state",
        "step",
        "steps",
        "unwrap",
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
            "--memory-every",
            "--mesh",
            "--metrics",
            "--micro-batch",
            "--parallel",
            "--peak-tflops",
            "--precision",
            "--recompute",
            "--reduce-once",
            "--sync",
            "--tf32",
            "--weights",
            "--worker-start",
            "--workers",
            "--nproc",
            "--port",
            "--ranks",
            "--resume",
        ),
        *("--max-restarts", "--no-buddy", "--save-every", "--termination-log"),
        *("--nproc-per-node", "--nproc_per_node", "--max_restarts"),  # as torchrun spells them
    }
    commands = cli._dtj.commands
    flags = {
        name: {option for p in command.params if isinstance(p, click.Option) for option in p.opts}
        for name, command in commands.items()
    }
    flags["run"] -= {o for p in torchrun.options(click.command()(lambda: None)).params for o in p.opts}
    for command in ("run", "train"):
        flags[command] -= {o for p in of_submit.options(click.command()(lambda: None)).params for o in p.opts}
    assert flags == {
        "run": common | {"-m", "--module", "-f", "--file", "--local"},
        "train": common | {"-h", "--help"},
        "export": {"--part", "--dtype", "--max-shard-size"},
        "plot": set(),
    }


def test_exit_codes() -> None:
    assert dtj.RecipeError("x").exit_code == contract.EXIT_BAD_RECIPE == 78
    assert (contract.EXIT_STOPPED, contract.EXIT_PEER_LOST) == (75, 76)


def test_message_fields_change_only_with_the_protocol_number() -> None:
    """If this fails, increase PROTOCOL: pods of different builds would misread each other's messages."""
    fields = [
        *(Hello.__dataclass_fields__, Keeper.__dataclass_fields__, RankState.__dataclass_fields__),
        *(CoordinatorState.__dataclass_fields__, Form.__dataclass_fields__, Ending.__dataclass_fields__),
        *(
            Heartbeat._fields,
            Probe.__dataclass_fields__,
            Activity._fields,
            ProgramPoint._fields,
            Message._fields,
        ),
        *([name, *kind._fields] for name, kind in facts.KINDS.items()),
    ]
    assert (PROTOCOL, [" ".join(each) for each in fields]) == (
        14,
        [
            "uid attempt replica incarnation processes restarts is_stopping ranks state keeper allowed",
            "port token machine",
            "generation holds is_ready is_unformed lost ending",
            "generation in_place without_progress error identical"
            " unformed best_step replicas shift startup_s",
            "generation kept replicas gracefully connect_s",
            "rank code at signal step message reason by_agent wrote",
            "generation step pause_s busy_time at is_counted",
            "place moved does responds is_stopped stopped asleep_s collectives",
            "generation is_stopped",
            "loops step is_over verb data_position",
            "stop finish save copy log not_finite interval",
            *("ready rank generation", "hold rank holds", "heartbeats ranks", "activity ranks"),
            *("probes ranks number", "saves rank works", "stopping"),
            *("lost ending generation", "unformed ending generation"),
            *("failing ending generation", "ended ending generation"),
        ],
    )
