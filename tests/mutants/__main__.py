"""make mutants: change the code a little, many times, and list the changes that no test detects.

    python -m tests.mutants                 all areas
    python -m tests.mutants plan crd        some of them

The sample is the same in every run. A change that survives is either harmless or a gap in the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLAN = "tests/unit/dtj_operator/plan"

# Area: Python files below src/ in the copy, the tests to run, and how many mutants to try.
CODE: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {
    "plan": (
        (
            *(f"dtj_operator/plan/{part}*.py" for part in ("", "children/", "policies/", "report/")),
            "dtj_operator/model/memory.py",
        ),
        # test_machine.py takes seconds: too long for each mutant. test_cost.py counts calls, as of mutmut.
        (
            *(PLAN, "tests/unit/dtj_operator/model/test_spec.py"),
            *(f"--ignore={PLAN}/test_{name}.py" for name in ("machine", "cost")),
        ),
        150,
    ),
    "order": (("dtj/data/order.py",), ("tests/unit/dtj/test_order.py",), 1000),
    "membership": (
        ("dtj/agent/coordinator/membership.py", "dtj/agent/coordinator/restarts.py"),
        tuple(f"tests/unit/dtj/test_{name}.py" for name in ("membership", "restarts", "sizing")),
        60,
    ),
    "hang": (
        ("dtj/agent/coordinator/watch/hang.py", "dtj/agent/coordinator/watch/verdict.py"),
        tuple(f"tests/unit/dtj/test_{name}.py" for name in ("monitor", "hang", "verdict")),
        60,
    ),
    "checkpoint": (
        # Not writer.py: only tests that start other processes reach it.
        ("dtj/checkpoint/save.py", "dtj/checkpoint/paths.py"),
        ("tests/unit/dtj/test_checkpoint.py",),
        60,
    ),
}
CRD_MUTANTS = 40


def main(argv: Sequence[str] | None = None) -> int:
    """Run the areas that the command line names, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("areas", nargs="*", choices=[*CODE, "crd", []], metavar="AREA")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout to test")
    given = parser.parse_args(argv)
    results = [run(area, given.root.resolve()) for area in given.areas or [*CODE, "crd"]]
    return max(results)


def run(area: str, root: Path) -> int:
    """Try the mutants of an area in a process of its own; return its exit status."""
    stage = root / "build/mutants" / area
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    # -P and scripts by path: `tests` must be the package of the copy, or of the other checkout.
    if area == "crd":
        path = os.pathsep.join(str(root / part) for part in ("operator/src", "trainer/src", "."))
        command = [sys.executable, "-P", str(HERE / "crd.py"), str(CRD_MUTANTS), str(stage)]
        return subprocess.run(
            command, cwd=root, env=os.environ | {"PYTHONPATH": path}, check=False
        ).returncode
    files, tests, count = CODE[area]
    copy(root, stage, files, tests)
    environment = os.environ | {"PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", str(HERE / "code.py"), area, str(count)]
    return subprocess.run(command, cwd=stage, env=environment, check=False).returncode


def copy(root: Path, stage: Path, files: Sequence[str], tests: Sequence[str]) -> None:
    """Copy the checkout in the layout that mutmut supports: all packages below src/."""
    skipped = shutil.ignore_patterns("__pycache__")
    for package in (root / "operator/src/dtj_operator", root / "trainer/src/dtj"):
        shutil.copytree(package, stage / "src" / package.name, ignore=skipped)
    for folder in ("tests", "crds", "examples"):
        shutil.copytree(root / folder, stage / folder, ignore=skipped)
    project = (root / "pyproject.toml").read_text().replace('"operator/src", "trainer/src"', '"src"')
    settings = {
        "source_paths": ["src"],
        "only_mutate": [f"src/{file}" for file in files],
        "also_copy": ["crds", "examples"],
        "pytest_add_cli_args_test_selection": list(tests),
        "pytest_add_cli_args": [
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-p",
            "no:testmon",
            "--hypothesis-seed=1",
        ],
        "timeout_multiplier": 1.0,
        "timeout_constant": 5.0,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    added = [*lines, "use_git_change_detection = false", "track_dependencies = false"]
    (stage / "pyproject.toml").write_text("\n".join([project, "[tool.mutmut]", *added, ""]))


if __name__ == "__main__":
    sys.exit(main())
