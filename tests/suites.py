"""Runs the test suites and compares their times with tests/budget.toml.

    python -m tests.suites unit                 run one suite, or several
    python -m tests.suites test                 run lint and all suites
    python -m tests.suites soak unit --runs 10  run one ten times, the last five on a busy machine

docs/testing.md describes what each suite proves and where a new test goes.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGET = Path(__file__).with_name("budget.toml")
CODE = ("operator/src", "trainer/src", "client/src", "tests", "examples")
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "charts", "examples")
PROJECTS = ("pyproject.toml", "operator/pyproject.toml", "trainer/pyproject.toml", "client/pyproject.toml")
PROSE = (*sorted({*PAGES, *CODE}), ".ci", "Makefile", "crds", "images", *PROJECTS)
DOCKERFILES = tuple(sorted(map(str, (ROOT / "images").rglob("Dockerfile*"))))
PYTEST = ("pytest", "-q", "--durations=10")
READ_FILES = (
    *("tests/contract", "tests/docs", "tests/unit/chart", "tests/unit/crd", "tests/unit/images"),
    *("tests/unit/dtj/test_local_manifest.py", "tests/unit/dtj_client/test_cli.py"),
    *("tests/unit/dtj_client/test_submission.py", "tests/unit/dtj_operator/test_schema.py"),
)
BUSY_PROCESSES = 4

Command = tuple[str, ...]  # a program of the virtual environment and its arguments

# The linters run in parallel, and each reports even if another fails.
LINT: dict[str, Command] = {
    "types": ("python", "-m", "tests.support.type_check"),
    "imports": ("lint-imports", "--no-logo"),
    "code": ("ruff", "check", "--quiet", *CODE),
    "format": ("ruff", "format", "--check", "--quiet", *CODE),
    "links": ("rumdl", "check", "--quiet", "--no-cache", *PAGES),
    "suites and targets": ("python", "-m", "tests.support.layout", *PAGES),
    "words": ("python", "-m", "tests.support.prose", *PROSE),
    "code blocks": ("python", "-m", "tests.docs"),
    "Dockerfiles": ("hadolint", "--no-color", *DOCKERFILES),
}

# The commands of a suite run in order, until one fails.
SUITES: dict[str, tuple[Command, ...]] = {
    "unit": ((*PYTEST, "-n", "2", "tests/unit", "tests/contract", "tests/docs"),),
    "process": ((*PYTEST, "-n", "4", "--dist", "worksteal", "tests/process"),),
    "integration": ((*PYTEST, "-n", "4", "--dist", "loadgroup", "tests/integration"),),
    "e2e": (
        (*PYTEST, "--timeout=600", "-n", "6", "--dist", "worksteal", "-m", "not exclusive", "tests/e2e"),
        (*PYTEST, "--timeout=600", "-m", "exclusive", "tests/e2e"),
    ),
    "gpu": ((*PYTEST, "tests/gpu"),),
    # Only the unit tests that execute a line changed since the last run.
    "changed": ((*PYTEST, "--testmon", "tests/unit", "tests/contract", "tests/docs"),),
    # The unit tests that read the CRD, the chart, the images, examples and pages: testmon knows only Python.
    "files": ((*PYTEST, *READ_FILES),),
}

# Command -> what it runs, in this order, until one fails.
PLANS: dict[str, tuple[str, ...]] = {
    "check": ("lint", "changed"),
    "test": ("lint", "unit", "process", "integration", "e2e"),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a suite; `seconds` of wall-clock time."""

    name: str
    seconds: float
    passed: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suites that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__)
    parser.add_argument("names", nargs="+", choices=["lint", *SUITES, *PLANS, "soak"], metavar="NAME")
    parser.add_argument("--runs", type=int, default=10, help="how many times soak runs each suite")
    given = parser.parse_args(argv)
    if "soak" in given.names:
        first, *names = given.names
        if first != "soak" or not names or not set(names) <= {"lint", *SUITES}:
            parser.error(f"soak comes first, then what it repeats: lint, {', '.join(SUITES)}")
        return soak(names, runs=given.runs)
    failed = False
    for name in given.names:
        results = list(until_one_fails(parts(name)))
        print(table(name, results, tomllib.loads(BUDGET.read_text())))
        failed = failed or not all(result.passed for result in results)
    return int(failed)


def parts(name: str) -> tuple[str, ...]:
    """Return lint and the suites that a name stands for."""
    found = PLANS.get(name, (name,))
    return (*found, "files") if name == "check" and has_changed_files() else found


def has_changed_files() -> bool:
    """Whether files that are not Python differ from the last commit."""
    command = ("git", "status", "--porcelain", "--no-renames", "-uall")
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return not all(line.endswith(".py") for line in found.splitlines())


def until_one_fails(names: Sequence[str]) -> Iterator[Result]:
    for name in names:
        result = run(name)
        yield result
        if not result.passed:
            return


def run(name: str) -> Result:
    """Run lint or one suite; its output is not captured."""
    began = time.monotonic()
    passed = lint() if name == "lint" else all(succeeds(command) for command in SUITES[name])
    return Result(name=name, seconds=time.monotonic() - began, passed=passed)


def lint() -> bool:
    """Run the linters in parallel; print the output of those that fail."""
    running = {
        name: subprocess.Popen(
            arguments(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for name, command in LINT.items()
    }
    said = {name: process.communicate()[0] for name, process in running.items()}
    failed = [name for name, process in running.items() if process.returncode]
    for name in failed:
        print(f"lint, {name}:\n{said[name]}")
    return not failed


def succeeds(command: Command) -> bool:
    return subprocess.run(arguments(command), cwd=ROOT, check=False).returncode == 0


def arguments(command: Command) -> list[str]:
    return [str(Path(sys.executable).with_name(command[0])), *command[1:]]


def table(title: str, results: Sequence[Result], budget: dict[str, float]) -> str:
    """Return a table of measured seconds and limits: a row per suite, and one for the sum."""
    rows = [(result.name, result.seconds, "" if result.passed else "  FAILED") for result in results]
    if len(results) > 1:
        rows.append((title, sum(result.seconds for result in results), ""))
    lines = [f"{'':12} {'seconds':>8} {'limit':>8}"]
    for name, seconds, note in rows:
        limit = budget.get(name)
        over = "  over its limit" if limit is not None and seconds > limit else ""
        lines.append(f"{name:12} {seconds:8.1f} {limit if limit is not None else '-':>8}{over}{note}")
    return "\n".join(lines)


def soak(names: Sequence[str], *, runs: int) -> int:
    """Run each suite `runs` times, the second half beside busy processes; return 1 if any run failed."""
    failures = []
    for name in names:
        for number in range(1, runs + 1):
            busy = number > runs - runs // 2
            with busy_processes(BUSY_PROCESSES if busy else 0):
                result = run(name)
            verdict = "passed" if result.passed else "FAILED"
            beside = ", busy" if busy else ""
            print(f"soak: {name}, run {number} of {runs}{beside}: {verdict}, {result.seconds:.0f} s")
            failures += [] if result.passed else [f"{name} {number}"]
    print(f"soak: {len(failures)} of {len(names) * runs} runs failed", *failures)
    return int(bool(failures))


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run `count` processes that use all of a CPU each, until the block ends."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
