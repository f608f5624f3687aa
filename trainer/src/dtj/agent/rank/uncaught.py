"""An exception that the program does not catch goes through `sys.excepthook`, as Python itself does it.

Libraries replace the hook: wandb notes there that its run has failed, Sentry sends the error, rich prints it.
Exit functions find it in `sys.last_value`.
"""

import contextlib
import io
import sys
import traceback
from types import TracebackType
from typing import TextIO


class UncaughtErrors:
    """Installs the hook that a program finds; it prints the traceback unless the program replaces it."""

    def __init__(self) -> None:
        self._stream: TextIO | None = None
        # As both: libraries compare the two, and call the one before theirs only if another one had set it.
        sys.excepthook = sys.__excepthook__ = self._print

    def hand_over(self, error: BaseException, *, is_shown: bool = True) -> None:
        """Call the hook; what it prints is lost unless `is_shown`."""
        trace = error.__traceback__
        # They also keep what the failed functions hold until exit functions are over: torch's loaders, freed
        # before that, wait 5 s for each of their processes.
        vars(sys).update(last_exc=error, last_type=type(error), last_value=error, last_traceback=trace)
        # torch.distributed's hook replaces the stream to put the rank before each line, as the log does, too.
        self._stream = sys.stderr if is_shown else io.StringIO()
        with contextlib.redirect_stderr(self._stream):
            try:
                sys.excepthook(type(error), error, trace)
            except SystemExit:
                return  # the exit code is decided
            except BaseException:  # noqa: BLE001 - the hook is the program's, too
                traceback.print_exc()

    def _print(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        traceback.print_exception(kind, error, trace, file=self._stream)
