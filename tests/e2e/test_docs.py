"""Runs the kubectl and helm lines of each docs page on the cluster, and applies its manifests, in order."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster import tools
from tests.docs.blocks import ROOT, Block, Line, blocks, lines, pages
from tests.support.kubectl import Kubectl


def steps(page: Path) -> list[Block | Line]:
    """Return the manifests that a page applies and the lines that it runs on the cluster, in order."""
    found: list[Block | Line] = []
    for block in blocks(page):
        if block.language == "yaml" and block.marker == "cluster":
            found.append(block)
        elif block.is_run:
            found += [line for line in lines(block) if line.on_cluster]
    return found


@pytest.fixture
def shell(kubectl: Kubectl, tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Return a function that runs a shell line in the checkout; kubectl's context is the test's namespace."""
    config = tmp_path / "kubeconfig"
    config.write_text(kubectl("config", "view", "--raw"))
    own = replace(kubectl, kubeconfig=config, namespace=None)
    own("config", "set-context", "--current", f"--namespace={kubectl.namespace}")
    programs = [str(kubectl.binary.parent), str(tools.ensure("helm")["helm"].parent)]
    path = os.pathsep.join([*programs, os.environ["PATH"]])
    env = os.environ | {"KUBECONFIG": str(config), "PATH": path}

    def run(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=360,
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    "page", [p for p in pages() if steps(p)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_cluster_lines_of_a_page_run(
    kubectl: Kubectl, shell: Callable[[str], subprocess.CompletedProcess[str]], page: Path
):
    for step in steps(page):
        if isinstance(step, Block):
            kubectl("apply", "-f", "-", given=step.text)
            continue
        done = shell(step.text)
        assert done.returncode == 0, f"{step.place}: {step.text}\n{done.stdout}{done.stderr}"
