"""Helm for the tests of the chart."""

from __future__ import annotations

import copy
import functools
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

Json = dict[str, Any]
Render = Callable[[Json], list[Json]]
CHART = Path(__file__).parents[3] / "charts/dtj-operator"


@dataclass(frozen=True)
class Helm:
    """The helm program, with its own home directory."""

    program: Path
    home: Path

    def __call__(self, *words: str, given: Json | None = None, fails: bool = False) -> str:
        """Run helm with `given` as values; return its output, or its error output if it must fail."""
        values = ["--values=-"] if given is not None else []
        done = subprocess.run(
            [self.program, *words, *values],
            input=json.dumps(given or {}),
            capture_output=True,
            text=True,
            check=False,
            env={"HOME": str(self.home), "PATH": "/usr/bin:/bin"},
        )
        assert bool(done.returncode) == fails, done.stderr + done.stdout
        return done.stderr if fails else done.stdout

    def template(self, values: Json, namespace: str = "dtj-system") -> str:
        """Return the manifests of a release in this namespace as text."""
        return self(
            "template", "dtj", str(CHART), f"--namespace={namespace}", "--kube-version=1.35.0", given=values
        )


def kinds(manifests: list[Json], kind: str) -> list[Json]:
    """Return the manifests of a kind."""
    return [each for each in manifests if each["kind"] == kind]


@pytest.fixture(scope="session")
def helm(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Return helm with its own home directory."""
    return Helm(programs["helm"], tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """Return a function: values -> manifests, which the caller may change. Each chart is rendered once."""

    @functools.cache
    def rendered(values: str) -> list[Json]:
        return [each for each in yaml.load_all(helm.template(json.loads(values)), yaml.CSafeLoader) if each]

    return lambda values: copy.deepcopy(rendered(json.dumps(values, sort_keys=True)))
