"""The runbook has an entry for every reason of a condition or an Event that the operator writes."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from dtj_operator.plan.actions import Suspend
from dtj_operator.plan.report import degraded
from dtj_operator.plan.report.conditions import UNBLOCKED

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "operator/src"
# Calls that say a reason: where it is among the arguments.
PLACES = dict.fromkeys(("Refusal", "_blocked", "Fail", "Suspend", "Succeed"), 0)
PLACES |= {"Event": 1, "State": 1, "_warn": 2}


def reasons() -> set[str]:
    """Return all reasons in the operator's code."""
    found = {Suspend.reason, *degraded.REASONS}  # a default, and what a call returns
    for file in SOURCE.rglob("*.py"):
        name = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text())):
            for expression in stated(node):
                found.update(values(expression, name))
    return found


def stated(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expression of a reason, if a call has one."""
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in PLACES:
            yield from (each.value for each in node.keywords if each.arg == "reason")
            yield from node.args[PLACES[called] :][:1]


def values(expression: ast.expr, module: str) -> Iterator[str]:
    """Yield the values of an expression that are known without running the code around it."""
    if isinstance(expression, ast.IfExp):
        yield from values(expression.body, module)
        yield from values(expression.orelse, module)
    elif isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        yield expression.value
    elif isinstance(expression, ast.Name):
        known = getattr(importlib.import_module(module), expression.id, None)  # None: a local variable
        if isinstance(known, str):
            yield known


def test_every_reason_has_a_row_in_the_runbook():
    section = (ROOT / "docs/operations.md").read_text().split("\n## Reasons of conditions and Events\n")[1]
    rows = [line.split("|")[1] for line in section.split("\n## ")[0].splitlines() if line.startswith("| `")]
    listed = [reason for row in rows for reason in re.findall("`(\\w+)`", row)]
    assert sorted(listed) == sorted(reasons())


def test_reasons_that_count_as_no_obstacle_exist():
    assert reasons() >= UNBLOCKED
