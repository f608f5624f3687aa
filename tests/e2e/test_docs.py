"""Runs the kubectl and helm lines of each docs page on the cluster, and applies its manifests, in order.

Pages that only create objects are left to tests/integration/docs: they need no pods.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.docs.on_cluster import Shell, pages_with_steps, steps
from tests.e2e.conftest import no_other_placement
from tests.support.kubectl import Kubectl
from tests.support.predicates import phase

DIGITS = (ROOT / "docs/logs.md", ROOT / "README.md")  # both apply examples/digits-ddp.yaml
PAGES = [page for page in pages_with_steps(need_pods=True) if page not in DIGITS]
FIRST_JOB = ROOT / "docs/first-job.md"


@pytest.fixture
def shell(kubectl: Kubectl, tmp_path: Path) -> Shell:
    """Return a shell in the checkout; kubectl's context is the test's namespace."""
    return Shell(kubectl, tmp_path)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.long(45) if page == FIRST_JOB else ()) for page in PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_cluster_lines_of_a_page_run(shell: Shell, page: Path):
    for step in steps(page):
        shell.perform(step)


def test_digits_of_two_pages_train_to_97_percent_on_two_nodes(kubectl: Kubectl, shell: Shell):
    """The first page follows the job to its end; the second applies it again and finds it complete."""
    first, *others = (step for page in DIGITS for step in steps(page))
    with no_other_placement():
        shell.perform(first)
        kubectl.until("dtj", "digits", phase("Running", "Succeeded"))
    for step in others:
        shell.perform(step)

    job = kubectl.get("dtj", "digits") or {}
    assert job["status"]["phase"] == "Succeeded"
    assert job["status"]["worldSize"] == 2
    nodes = {pod["spec"]["nodeName"] for pod in kubectl.list("pods", "dtj.dev/job-name=digits")}
    assert len(nodes) == 2
    accuracies = [float(each) for each in re.findall(r"accuracy[ =:]+([0-9.]+)", kubectl("logs", "digits-0"))]
    assert accuracies[-1] >= 0.97
