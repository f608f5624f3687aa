"""Command line: parses argv, prints errors as two lines, chooses the exit code. Does not import torch."""

import os
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

import dtj
from dtj import contract, settings
from dtj.agent import alone
from dtj.agent.launch import launch
from dtj.agent.options import Options
from dtj.agent.placement import Placement
from dtj.agent.rank.main import Program
from dtj.cli import of_submit, program, recipe_cli, torchrun
from dtj.errors import DtjError, RecipeError
from dtj.local import manifest, replicas
from dtj.telemetry import metric_files
from dtj.telemetry.say import say

_UNITS = {"MB": 10**6, "GB": 10**9}
_OTHERS = "dtj.commands"  # group of entry points: each loads a main(argv), which never returns
# What dtj-client adds to that group: without it these are named with what to install.
_OF_THE_CLIENT = frozenset(
    {
        *("convert", "delete", "doctor", "events", "get", "logs", "resume", "scale", "stacks", "status"),
        *("stop", "submit", "suspend", "templates", "top", "ui", "wait"),
    }
)
_INSTALL_CLIENT = "pip install ./client, in a checkout of dtj"


def _option(name: str) -> Any:
    """The click option of a setting that settings.py declares."""
    flag = settings.FLAGS[name]
    how: dict[str, Any] = {"type": flag.kind, "metavar": flag.form or None, "multiple": flag.many}
    if flag.kind is click.BOOL:
        how = {"is_flag": True}
    return click.option(settings.option(name), name, help=flag.help, **how)


_FLAGS = [
    click.option(
        "--nproc",
        "--nproc-per-node",
        "--nproc_per_node",
        "nproc",
        type=torchrun.Processes(),
        help="Ranks to start on this machine. [default: from the job, else 1]",
    ),
    click.option("--ranks", "shown", help="Print the output of these ranks only, e.g. 0,2. [default: all]"),
    *map(_option, settings.FLAGS),
    click.option(
        "--max-restarts",
        "--max_restarts",
        type=click.IntRange(min=0),
        help="Maximum number of in-place restarts of failed ranks. [default: from the job, else 0]",
    ),
    click.option(
        "--no-buddy",
        is_flag=True,
        help="Keep copies of state in the own pod only, not in another replica's, too.",
    ),
    click.option(
        "--port",
        type=click.IntRange(min=1, max=65535),
        help="Port for /status, /metrics, /stacks and /healthz. [default: from the job, else none]",
    ),
    click.option(
        "--termination-log",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File for the JSON report that is written at exit.",
    ),
]


def main(argv: list[str] | None = None) -> None:
    """Entry point of `dtj`; never returns. Exits with code 78 for bad arguments, as for a bad recipe."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] not in _dtj.commands and not words[0].startswith("-"):
        for command in entry_points(group=_OTHERS, name=words[0]):
            command.load()(words)
    try:
        if words and words[0] in _OF_THE_CLIENT:
            raise RecipeError(f"dtj {words[0]} needs the package dtj-client", fix=_INSTALL_CLIENT)
        code = _dtj.main(argv, prog_name="dtj", standalone_mode=False)
    except click.ClickException as error:
        say(RecipeError(error.format_message(), fix=_usage(error)))
        code = contract.EXIT_BAD_RECIPE
    except click.Abort:
        code = contract.EXIT_SIGNAL + 2
    except DtjError as error:
        say(error)
        code = error.exit_code
    sys.exit(code)


class _Group(click.Group):
    """The trainer's commands; its help names those of other packages too, which `main` runs."""

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands of other packages by name: their help would need an import of each."""
        others = sorted({each.name for each in entry_points(group=_OTHERS)} - set(self.commands))
        with formatter.section("Jobs on a cluster"):
            formatter.write_text(", ".join(others) or f"need the package dtj-client: {_INSTALL_CLIENT}")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(dtj.__version__, prog_name="dtj")
def _dtj() -> None:
    """Train a PyTorch model on this machine, or as one node of a distributed job."""


def _flagged(command: Any) -> Any:
    command = of_submit.options(command)
    for flag in reversed(_FLAGS):
        command = flag(command)
    return command


@_dtj.command(
    "run",
    short_help="Run a script on every rank, or a job without a cluster.",
    context_settings={"allow_interspersed_args": False},
)
@_flagged
@torchrun.options
@click.option("-m", "--module", is_flag=True, help="Treat SCRIPT as a module name, as in python -m.")
@click.option("-f", "--file", "file", metavar="JOB.yaml", help="With --local: the job to run.")
@click.option("--local", is_flag=True, help="Run all replicas of the job in the file on this machine.")
@click.argument("script", required=False)
@click.argument("words", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def _run(
    context: click.Context,
    /,
    script: str | None,
    words: tuple[str, ...],
    *,
    module: bool,
    file: str | None,
    local: bool,
    **given: Any,
) -> int:
    """Run a training script on every rank, or with -f JOB.yaml --local a job without a cluster.

    The script finds the environment variables that torchrun sets, so `env://` works. torchrun's own options
    have the same names here.
    """
    if file or local:
        return _run_locally(context, file, script, given) if file and local else _refuse_half(file)
    if script is None:
        raise RecipeError(
            "no script given", fix="for example dtj run train.py; or a job: dtj run -f job.yaml --local"
        )
    os.environ.update(torchrun.environment(given))
    made = program.module if module else program.script
    return _launch(made(script, torchrun.of_program(words)), given)


def _refuse_half(file: str | None) -> NoReturn:
    if file:
        raise RecipeError(
            f"-f {file} without --local", fix=f"dtj run -f {file} --local; on a cluster dtj submit -f {file}"
        )
    raise RecipeError("--local without a job", fix="name its file: dtj run -f job.yaml --local")


def _run_locally(context: click.Context, file: str, script: str | None, given: Mapping[str, Any]) -> int:
    """Settings reach all ranks; what else could be given is in the file."""
    if script is not None:
        raise RecipeError(
            f"-f {file} and the script {script}", fix="leave out the script: the job has its own"
        )
    # Words only follow a script, and click 8.1 says that they were given if there are none.
    allowed = {"file", "local", "words", *settings.FLAGS.keys() - {"log_format"}}
    for option in context.command.params:
        is_given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if is_given and option.name not in allowed:
            raise RecipeError(
                f"{option.opts[-1]} does not go with -f", fix=f"change the field, or the args, in {file}"
            )
    job = manifest.load(file)
    os.environ.update(_environment(given))
    return replicas.run(job, main)


@_dtj.command("train", add_help_option=False)
@_flagged
@click.option(
    "-h",
    "--help",
    "wants_help",
    is_flag=True,
    help="Show this message, or with RECIPE the arguments of the recipe.",
)
@click.argument("target", metavar="RECIPE", required=False)
@click.argument("words", metavar="[KEY=VALUE]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def _train(
    context: click.Context, /, target: str | None, words: tuple[str, ...], *, wants_help: bool, **given: Any
) -> int:
    """Train a recipe.

    RECIPE is module:function or ./file.py:function, e.g. dtj.recipes.digits:recipe.
    """
    if target is None:
        if not wants_help:
            raise RecipeError(
                "no recipe given",
                fix="for example dtj train dtj.recipes.digits:recipe epochs=5; see dtj train --help",
            )
        click.echo(context.get_help())
        return 0
    if wants_help:
        click.echo(recipe_cli.describe(target, recipe_cli.resolve(target)))
        return 0
    return _launch(program.recipe(target, words), given)


@_dtj.command("export", short_help="Write the weights in a checkpoint to a file or folder.")
@click.argument("source")
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--part", default="model", help="Name that run.state gave the model. [default: model]")
@click.option(
    "--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), help="Number format. [default: that of the model]"
)
@click.option(
    "--max-shard-size",
    "most",
    metavar="SIZE",
    help="Largest file in a folder, e.g. 500MB. [default: 5GB]",
)
def _export(source: str, target: Path, part: str, dtype: str | None, most: str | None) -> int:
    """Write a model's weights from a checkpoint to a file, or to a folder as transformers has it.

    SOURCE is the checkpoint, a folder or a URL; TARGET ends in .safetensors, or in .pt for torch.load.
    Without a suffix it is a folder of .safetensors files, with an index if there are several.
    """
    if most and target.suffix and not target.is_dir():
        raise RecipeError(
            f"--max-shard-size, but {target} is one file", fix=f"name a folder: {target.with_suffix('')}"
        )
    most_bytes = _bytes(most or "5GB")
    from dtj.checkpoint import export, objects  # noqa: PLC0415 - imports torch

    _check_folder_of(target)
    count = export.export(
        objects.locate(source),
        target,
        part=part,
        dtype=export.DTYPES[dtype] if dtype else None,
        max_file_bytes=most_bytes,
    )
    click.echo(f"{target}: {count} tensors")
    return 0


def _bytes(text: str) -> int:
    """A number of bytes as transformers takes it: 500MB, 5GB; RecipeError for anything else."""
    number, unit = text[:-2], text[-2:].upper()
    if unit not in _UNITS or not number.isdecimal() or not int(number):
        raise RecipeError(f"--max-shard-size is {text!r}", fix="write a whole number and MB or GB, e.g. 5GB")
    return int(number) * _UNITS[unit]


@_dtj.command("plot")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path), required=False)
def _plot(source: Path, target: Path | None) -> int:
    """Plot a .jsonl file that --metrics wrote.

    The picture shows loss, other values, rate and restarts. TARGET defaults to SOURCE with suffix .png.
    """
    from dtj.cli.plot import plot  # noqa: PLC0415

    target = target or source.with_suffix(".png")
    _check_folder_of(target)
    click.echo(f"{target}: {plot(source, target)} logged steps")
    return 0


def _check_folder_of(target: Path) -> None:
    if not target.parent.is_dir():
        raise RecipeError(
            f"the folder {target.parent} does not exist", fix="create it, or choose another file"
        )


def _launch(what: Program, given: Mapping[str, Any]) -> int:
    if why := alone.leave_job(os.environ):
        say(f"{why}; this agent runs alone, without the job's variables")
    if words := of_submit.without_effect(click.get_current_context()):
        say(f"no effect on this machine: {words}")
    os.environ.update(_environment(given))
    placement = Placement.read(os.environ, nproc=given["nproc"])
    options = Options.read(
        os.environ,
        shown=given["shown"],
        as_json=given["log_format"] == "json",
        port=given["port"],
        termination_log=given["termination_log"],
        max_restarts=given["max_restarts"],
        no_buddy=given["no_buddy"],
    )
    return launch(what, placement, options)


def _environment(given: Mapping[str, Any]) -> dict[str, str]:
    """Environment variables that pass the given settings to the ranks; paths are made absolute."""
    texts = {name: _text(name, given[name]) for name in settings.FLAGS}
    return {settings.variable(name): text for name, text in texts.items() if text}


def _text(name: str, value: Any) -> str:
    """The value of a setting as text, with an absolute path if it is one; "" for a flag that is not given."""
    if value is None or value is False:
        return ""
    if settings.FLAGS[name].many:
        return "\n".join(map(metric_files.absolute, value))
    is_path = isinstance(settings.FLAGS[name].kind, settings.LocalPath) and "://" not in value
    return str(Path(value).resolve()) if is_path else settings.as_text(value)


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f"see {context.command_path} --help" if context else ""
