"""The file in which torch's `@record` leaves the exception of a rank; TORCHELASTIC_ERROR_FILE names it.

It is memory of the agent, which every process of this pod can open by its path, and needs no folder. The
record is used if the rank itself reported nothing: its script caught the exception and left with `os._exit`,
or a process that it had started failed.
"""

import json
import os

_MOST_BYTES = 1 << 20


class ErrorFile:
    """One for each process of a rank; without memfd (macOS) it has no path."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("dtj-error") if hasattr(os, "memfd_create") else None

    @property
    def path(self) -> str | None:
        """Where the rank, and what it starts, can write."""
        return None if self._fd is None else f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> str:
        """The traceback that was written, else the error's text, or "" if there is neither."""
        if self._fd is None:
            return ""
        data = os.pread(self._fd, _MOST_BYTES, 0)
        os.close(self._fd)
        self._fd = None
        try:
            found = json.loads(data)["message"]
        except (ValueError, KeyError, TypeError):
            return ""
        return _text(found).strip()


def _text(found: object) -> str:
    match found:
        case {"extraInfo": {"py_callstack": str(stack)}}:
            return stack
        case {"message": str(text)} | str(text):
            return text
    return ""
