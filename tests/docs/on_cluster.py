"""What the pages do with a cluster: the manifests that they apply, their kubectl and helm lines, in order."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from tests.cluster import tools
from tests.docs.blocks import ROOT, Block, Line, blocks, lines, pages
from tests.support.kubectl import Kubectl

# kubectl apply, create: such a line reads nothing of pods.
ONLY_CREATES = ("apply", "create")


def steps(page: Path) -> list[Block | Line]:
    """Return the manifests that a page applies and the lines that it runs on the cluster, in order."""
    found: list[Block | Line] = []
    for block in blocks(page):
        if block.language == "yaml" and block.marker == "cluster":
            found.append(block)
        elif block.is_run:
            found += [line for line in lines(block) if line.on_cluster]
    return found


def needs_pods(page: Path) -> bool:
    """Whether the page does more on the cluster than to create objects."""
    found = (words for step in steps(page) if isinstance(step, Line) for words in step.commands)
    return any(words[:1] != ["kubectl"] or words[1] not in ONLY_CREATES for words in found)


def pages_with_steps(*, need_pods: bool) -> list[Path]:
    """Return the pages that do something with a cluster, and need pods for it or not."""
    return [page for page in pages() if steps(page) and needs_pods(page) == need_pods]


class Shell:
    """A shell in the checkout; the context of its kubectl is a namespace."""

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        """Write the kubeconfig of the shell to the folder."""
        config = folder / "kubeconfig"
        config.write_text(kubectl("config", "view", "--raw"))
        own = replace(kubectl, kubeconfig=config, namespace=None)
        own("config", "set-context", "--current", f"--namespace={kubectl.namespace}")
        programs = [str(kubectl.binary.parent), str(tools.ensure("helm")["helm"].parent)]
        path = os.pathsep.join([*programs, os.environ["PATH"]])
        self._kubectl = kubectl
        self._env = os.environ | {"KUBECONFIG": str(config), "PATH": path}

    def perform(self, step: Block | Line) -> None:
        """Apply a manifest or run a line; fail with its place and output if that fails."""
        if isinstance(step, Block):
            self._kubectl("apply", "-f", "-", given=step.text)
            return
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", step.text],
            cwd=ROOT, env=self._env, capture_output=True, text=True, check=False, timeout=360,
        )  # fmt: skip
        assert done.returncode == 0, f"{step.place}: {step.text}\n{done.stdout}{done.stderr}"
