"""Options of `dtj submit` for `dtj run` and `dtj train`: only the verb changes on the way to a cluster.

Most have no effect on one machine, and the command says so.
"""

import os
from typing import Any

import click

from dtj.agent.rank.preload import search

_NOTED = "dtj.without_effect"  # in the click context: the given options that have no effect, with a hint
_HINTS = {
    "--replicas": "--nproc N starts N ranks here",
    "--gpus": "--nproc gpu starts a rank for each GPU of this machine",
    "--checkpoints": "--checkpoint FOLDER saves here",
    "--requirements": "the packages of this Python are used",
    "--env-from": "--env sets variables here",
}
_WITH_VALUE = (
    *_HINTS,
    *("--name", "--cpu", "--memory", "--image", "--user", "--template", "--queue", "--code-claim"),
)
_FLAGS = ("--no-code", "--follow")


def options(command: Any) -> Any:
    """Add them to a click command. They are not in its help, which is about one machine."""
    hidden: dict[str, Any] = {"expose_value": False, "hidden": True, "callback": _note}
    for name in _WITH_VALUE:
        command = click.option(name, **hidden)(command)
    for name in _FLAGS:
        command = click.option(name, is_flag=True, default=None, **hidden)(command)
    return click.option(
        "--env",
        multiple=True,
        expose_value=False,
        callback=_set,
        metavar="NAME=VALUE",
        help="Set a variable of the program; may be repeated.",
    )(command)


def without_effect(context: click.Context) -> str:
    """The options that were given and have no effect here; empty: none."""
    return ", ".join(context.meta.get(_NOTED, ()))


def _note(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        name = parameter.opts[0]
        hint = f" ({_HINTS[name]})" if name in _HINTS else ""
        context.meta.setdefault(_NOTED, []).append(name + hint)


def _set(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> None:
    for each in values:
        name, separator, value = each.partition("=")
        if not (name and separator):
            raise click.UsageError(f"--env {each}: write NAME=VALUE")
        os.environ[name] = value
        if name == "PYTHONPATH":
            search(value)
