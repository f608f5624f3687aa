"""Bytes from a rank's pipe -> whole lines with the rank's number in front.

Lines of different ranks are never mixed. The last line is kept even if the rank died in the middle of it.
"""

import json
import re
from collections import deque
from typing import Any

# A progress bar redraws its line with \r: each redraw becomes a line of the log, unless it shows nothing.
_END = re.compile(rb"(\r\n|\n|\r(?=.))", re.DOTALL)
# To another line of the terminal: a log has its lines in order, and beside them those of other ranks.
_MOVE = re.compile(rb"\x1b\[[\d;]*[A-HJKf]")
# A line without an end must not fill the memory.
_MAX_BYTES = 64 * 1024
_RECENT_BYTES = 200  # of each line that is kept as a recent one


class LogLines:
    """Collects one stream of one rank; `recent` gets each line that is not empty, and may drop old ones."""

    def __init__(self, *, rank: int, as_json: bool, recent: deque[bytes] | None = None) -> None:
        self._rank = rank
        self._as_json = as_json
        self._recent = deque[bytes](maxlen=0) if recent is None else recent
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """More bytes in, whole lines out."""
        *whole, self._rest = _END.split(_MOVE.sub(b"", self._rest + data))
        lines = zip(whole[::2], whole[1::2], strict=True)
        shown = [line for line, end in lines if end != b"\r" or line.strip()]
        if len(self._rest) > _MAX_BYTES:
            shown.append(self._rest)
            self._rest = b""
        return b"".join(self._prefixed(line) for line in shown)

    def end(self) -> bytes:
        """The stream has ended: return the rest as a line."""
        rest, self._rest = self._rest, b""
        return self._prefixed(rest) if rest else b""

    def _prefixed(self, line: bytes) -> bytes:
        if kept := line[:_RECENT_BYTES].rstrip():
            self._recent.append(kept)
        if not self._as_json:
            return b"[rank %d] %s\n" % (self._rank, line)
        text = line.decode(errors="replace")
        try:
            fields = json.loads(text)
            shown = self._as_object(fields) if isinstance(fields, dict) else None
        except (ValueError, RecursionError):  # not JSON, or nested too deeply
            shown = None
        return shown or self._as_object({"message": text})

    def _as_object(self, fields: dict[str, Any]) -> bytes:
        line = json.dumps({"rank": self._rank} | fields, ensure_ascii=False)
        return line.encode(errors="backslashreplace") + b"\n"  # a lone surrogate becomes its escape in JSON
