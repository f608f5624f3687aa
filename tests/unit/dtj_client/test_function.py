"""A function as a program of its own."""

import builtins
import contextlib
import functools
import json
import linecache
import string as letters
import sys
import xml.dom as dom
import xml.dom.minidom
from collections.abc import Callable
from math import pow, sqrt  # noqa: A004 - a test is about such names
from types import ModuleType
from typing import Any

import pytest

from dtj_client.errors import ClientError
from dtj_client.submission.function import as_program
from tests.support import kubectl as local_module

RATE = 0.5
SIZES = {"small": [1, 2]}
HANDLE = object()


class Point:
    def __init__(self, x: float) -> None:
        self.x = x

    def norm(self) -> float:
        return abs(self.x)


def double(x: float) -> float:
    return x * 2 if x < 100 else train(x)  # both refer to each other


def train(x: float, out: list[Any] | None = None) -> float:
    def inner() -> float:
        return Point(double(x)).x * RATE

    print(json.dumps([inner(), sqrt(4), SIZES["small"], letters.digits[:3]]))
    return x


def test_program_has_all_that_the_function_uses(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(as_program(train, 3.0), "run_train.py", "exec"), {"__name__": "__main__"})
    assert json.loads(capsys.readouterr().out) == [3.0, 2.0, [1, 2], "012"]


id = 7  # noqa: A001
open = functools.wraps(builtins.open)(lambda *_: None)  # noqa: A001 - as IPython has it


def uses_names_of_python() -> None:
    parsed = xml.dom.minidom.parseString("<a/>").childNodes[0].nodeName
    is_of_python = "lambda" not in open.__qualname__
    print(json.dumps([id, pow(2, 2), sum([1]), __name__, is_of_python, parsed, dom.Node.TEXT_NODE]))


def test_names_that_python_has_too_are_those_of_the_module(capsys: pytest.CaptureFixture[str]) -> None:
    """And a submodule that only a dotted import loads is imported."""
    program = as_program(uses_names_of_python)
    exec(compile(program, "run.py", "exec"), {"__name__": "__main__"})
    assert json.loads(capsys.readouterr().out) == [7, 4.0, 1, "__main__", True, "a", 3]
    assert "import xml.dom.minidom\n" in program


CELL = """
import dataclasses as d
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Optional
@dataclass
class Options:
    of: ClassVar[int] = 1
    _: KW_ONLY
    seeds: d.InitVar[int] = 0
    rate: Optional["Missing"] = None
def uses_options():
    print([each.name for each in d.fields(Options)], Options(seeds=1))
"""


def test_class_of_a_cell_has_the_same_fields(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """inspect finds no source of it, as in a notebook, whose cells IPython gives to linecache."""
    notebook, sent = ModuleType("of_a_notebook"), ModuleType("sent")
    for module in (notebook, sent):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, cell in (("<1>", CELL.replace("of:", "old:")), ("<2>", CELL), ("<3>", "class Options(:")):
        monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name))
    exec(compile(CELL, "<2>", "exec"), vars(notebook))
    program = as_program(notebook.uses_options)
    exec(compile(program, "run.py", "exec"), vars(sent))
    sent.uses_options()
    assert capsys.readouterr().out == "['rate'] Options(rate=None)\n"
    assert "old" not in program


def test_class_of_a_cell_that_runs_again_is_the_one_that_the_kernel_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel names a cell by what it says, so the last one of linecache is not the last that ran."""
    first = "class C:\n    number = 1\n    def f(self): pass\nclass D:\n    number = 1\ndef uses(): C, D\n"
    ran, failed = [first, first.replace("1", "2"), first], "1 / 0\nclass C:\n    number = 3\n"
    notebook = ModuleType("of_a_kernel")
    vars(notebook)["_ih"] = ["", *ran, failed]
    monkeypatch.setitem(sys.modules, notebook.__name__, notebook)
    for cell in (*ran, failed):
        name = f"<{hash(cell)}>"
        monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name))
        with contextlib.suppress(ZeroDivisionError):
            exec(compile(cell, name, "exec"), vars(notebook))
    program = as_program(notebook.uses)
    assert [line for line in program.splitlines() if "number" in line] == ["    number = 1"] * 2


def test_annotations_are_not_sent() -> None:
    assert "typing" not in as_program(train, 3.0)


def uses_handle() -> None:
    print(HANDLE)


def uses_local_module() -> None:
    print(local_module.Kubectl)


def closure(x: int) -> Callable[[], None]:
    def inside() -> None:
        print(x)

    return inside


from_text: dict[str, Any] = {}
exec("def function(): pass", from_text)


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (uses_handle, (), "cannot send HANDLE, a value of type object"),
        (uses_local_module, (), "the module tests.support.kubectl is not part of an installed package"),
        (closure(1), (), "it uses x of the function around it"),
        (lambda: None, (), "cannot send a lambda"),
        (from_text["function"], (), "Python has no source of it"),
        (functools.partial(train, 3.0), (), "cannot send a value of type partial"),
        (Point(1.0).norm, (), "cannot send a value of type method"),
        (train, (HANDLE,), "cannot send an argument: a value of type object"),
        (train, (), r"cannot call train\(\): missing a required argument: 'x'"),
        (train, (1, 2, 3), r"cannot call train\(1, 2, 3\): too many positional arguments"),
    ],
)
def test_what_cannot_be_sent_is_named(
    function: Callable[..., object], arguments: tuple[object, ...], said: str
) -> None:
    with pytest.raises(ClientError, match=said) as raised:
        as_program(function, *arguments)
    assert raised.value.fix


def test_call_without_a_known_signature_is_sent() -> None:
    assert as_program(dict, {"a": 1}).endswith("dict({'a': 1})\n")


def test_local_module_may_be_used_if_the_folder_goes_along() -> None:
    assert "import tests.support.kubectl as local_module" in as_program(uses_local_module, with_folder=True)
