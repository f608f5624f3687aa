"""JSON lines on standard error. A worker binds the job once, when it takes the key, to all lines about it."""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime

from dtj_operator.model.printable import one_line, printable

_job: ContextVar[str | None] = ContextVar("job", default=None)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "settings"}


@contextlib.contextmanager
def about(job: str) -> Iterator[None]:
    """Add a job, namespace/name, to every line logged inside the context."""
    token = _job.set(job)
    try:
        yield
    finally:
        _job.reset(token)


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, namespace, job, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.fields(record), default=str)

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (job := _job.get()) is not None:
            line |= zip(("namespace", "job"), job.split("/"), strict=False)
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return line


class Text(JsonLines):
    """The same fields for people, on one line: the message first, then name=value pairs; then a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = self.fields(record)
        head = f"{line.pop('time')} {str(line.pop('level')).upper():7} {one_line(str(line.pop('message')))}"
        trace = printable(str(line.pop("exception", "")))
        line.pop("logger")
        tail = " ".join(f"{name}={one_line(str(value))}" for name, value in line.items())
        return "\n".join(filter(None, (f"{head}  {tail}".rstrip(), trace)))


def configure(level: str, form: str) -> None:
    """Log to standard error; `form` is json or text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("kopf", "asyncio", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
