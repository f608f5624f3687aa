"""Counts what a call does: unlike its time, this is the same on every machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_executed(call: Callable[[], object]) -> int:
    """How many lines of Python the call executes, those of comprehensions once for each element."""
    count, before = 0, sys.gettrace()

    def trace(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
