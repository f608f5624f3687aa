"""A real API server takes every manifest of the pages, and kubectl and helm know every flag in them.

The lines of pages that only create objects are run here, those of other pages by tests/e2e/test_docs.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ON_CLUSTER, Block, all_blocks, lines
from tests.docs.on_cluster import Shell, pages_with_steps, steps
from tests.support.kubectl import Kubectl

ROOT = Path(__file__).parents[3]
COMMANDS = [
    pytest.param(words, id=line.place)
    for block in all_blocks("sh")
    for line in lines(block)
    for words in line.commands
    if words[0] in ON_CLUSTER
]


@pytest.mark.parametrize("block", all_blocks("yaml"), ids=lambda block: block.place)
def test_api_server_takes_the_manifests(kubectl: Kubectl, block: Block):
    kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", given=block.text)


@pytest.mark.parametrize(
    "page", pages_with_steps(need_pods=False), ids=lambda page: str(page.relative_to(ROOT))
)
def test_lines_that_only_create_objects_run(kubectl: Kubectl, tmp_path: Path, page: Path):
    shell = Shell(kubectl, tmp_path)
    for step in steps(page):
        shell.perform(step)


@pytest.mark.parametrize("words", COMMANDS)
def test_command_and_flags_exist(programs: dict[str, Path], tmp_path: Path, words: list[str]):
    """With --help nothing is run, but the command and its flags are parsed first."""
    plugin = tmp_path / "kubectl-dtj"
    plugin.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}/client/src exec {sys.executable} -m dtj_client "$@"\n')
    plugin.chmod(0o755)
    end = words.index("--") if "--" in words else len(words)  # after it the program of a job begins
    command = [str(programs[words[0]]), *words[1:end], "--help", *words[end:]]
    env = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
