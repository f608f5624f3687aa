"""What can be said about the pages without running anything: `make lint` prints it as file:line: problem."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from dtj.cli import commands as cli
from tests.docs.blocks import NOT_RUN, OTHER, ROOT, Block, blocks, lines, place

MARKERS = {
    "sh": ("",),
    "yaml": ("", "cluster", OTHER),
    "python": ("", "run", "fragment"),
    "dockerfile": ("",),
    "text": ("",),
}
# Programs that a page may name although this machine may lack them.
PROGRAMS = {"curl", "cd", "docker", "dtj", "export", "git", "helm", "kubectl", "make", "pip", "python3"}
FOLDERS = ("charts/", "crds/", "docs/", "examples/", "images/", "tests/", "trainer/")


def problems(page: Path) -> Iterator[str]:
    """Yield what is wrong with a page, each with file and line."""
    for block in blocks(page):
        yield from (f"{where}: {what}" for where, what in _of_block(block))


def _of_block(block: Block) -> Iterator[tuple[str, str]]:
    if block.language not in MARKERS:
        known = ", ".join(MARKERS)
        name = repr(block.language) if block.language else "no language"
        yield block.place, f"a code block with {name}; write a fence with one of {known}"
    elif block.marker not in MARKERS[block.language] and not _is_not_run(block):
        yield block.place, f"unknown marker {block.marker!r}; see tests/docs/blocks.py"
    elif block.language == "sh":
        yield from _of_shell(block)
    elif block.language == "yaml":
        yield from _of_yaml(block)
    elif block.language == "python" and block.marker != "fragment":
        try:
            compile(block.text, block.place, "exec")
        except SyntaxError as error:
            yield place(block.page, block.line + (error.lineno or 1) - 1), str(error)
    elif block.language == "dockerfile":
        done = subprocess.run(
            ["hadolint", "--no-color", "-"], input=block.text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            yield block.place, done.stdout.strip()


def _is_not_run(block: Block) -> bool:
    reason = block.marker.removeprefix(NOT_RUN).strip()
    return block.language == "sh" and block.marker.startswith(NOT_RUN) and len(reason) > 10


def _of_shell(block: Block) -> Iterator[tuple[str, str]]:
    syntax = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    if syntax.returncode:
        yield block.place, syntax.stderr.strip()
        return
    for line in lines(block):
        for words in line.commands:
            yield from ((line.place, what) for what in of_command(words))
        if not block.marker and line.commands[0][0] in ("docker", "git", "make", "pip"):
            yield (
                line.place,
                f"{line.commands[0][0]} is not run by tests: mark the block `sh {NOT_RUN} <reason>`",
            )


def of_command(words: list[str]) -> Iterator[str]:
    """Yield what is wrong with one command. For the flags of kubectl and helm see tests/integration/docs."""
    program, *rest = words
    if program not in PROGRAMS and "$" not in program and shutil.which(program) is None:
        yield f"there is no program {program}"
    if program == "dtj":
        yield from _of_dtj(rest)
    for word in rest:
        path = word.rpartition("=")[2].removeprefix("./").partition(":")[0].partition("[")[0]
        if path.startswith(FOLDERS) and not (ROOT / path).exists():
            yield f"there is no {path}"


def _of_dtj(words: list[str]) -> Iterator[str]:
    name = words[0] if words else ""
    if name not in cli._dtj.commands:
        yield f"dtj has no command {name!r}; there are {', '.join(sorted(cli._dtj.commands))}"
    elif "--help" not in words:
        try:
            given = cli._dtj.commands[name].make_context(f"dtj {name}", words[1:]).params
        except click.ClickException as error:
            yield error.format_message()
        else:
            if name == "train" and ":" not in given["target"]:
                yield f"{given['target']!r} does not name a recipe, such as module:function"


def _of_yaml(block: Block) -> Iterator[tuple[str, str]]:
    try:
        found = list(yaml.safe_load_all(block.text))
    except yaml.YAMLError as error:
        yield block.place, str(error)
        return
    if not all(isinstance(each, dict) and {"apiVersion", "kind"} <= each.keys() for each in found):
        yield block.place, "not a whole manifest: apiVersion and kind are missing"
    for container in _with_args(found):
        if "command" not in container and "/trainer:" in str(container.get("image")):
            yield from ((block.place, what) for what in _of_dtj([str(each) for each in container["args"]]))


def _with_args(value: object) -> Iterator[dict[str, Any]]:
    """Yield all containers that have arguments, also those of a job within another object."""
    if isinstance(value, dict) and "args" in value:
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _with_args(each)
