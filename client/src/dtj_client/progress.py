"""How far a call is, and a bar that shows it on a terminal."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import click

Progress = Callable[[int, int], None]  # called with how many are done, and of how many
QUIET_S = 1.0  # what takes less shows no bar


def ignore(_done: int, _of: int) -> None:
    """Show nothing."""


@contextlib.contextmanager
def bar(label: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """Yield what draws a bar on standard error, once the call takes long; a pipe gets nothing."""
    if not sys.stderr.isatty():
        yield ignore
        return
    began = clock()
    with contextlib.ExitStack() as stack:
        shown = None

        def show(done: int, of: int) -> None:
            nonlocal shown
            if shown is None:
                if clock() < began + QUIET_S:
                    return
                shown = stack.enter_context(
                    click.progressbar(length=of, label=label, file=sys.stderr, update_min_steps=0)
                )
            shown.length = of
            shown.pos = done  # a restart repeats steps, so it can be less than before
            shown.update(0)

        yield show
