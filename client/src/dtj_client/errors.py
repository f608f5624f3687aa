"""The one error that commands raise: what is wrong, and how to fix it."""

from typing import Any


class ClientError(Exception):
    """A sentence for the user.

    fix   what to do, as a second sentence; may be empty
    """

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(f"{message}\n  fix: {fix}" if fix else message)
        self.message, self.fix = message, fix


def not_yaml(error: Exception) -> str:
    """What is wrong with a text that is not YAML, and where, without the lines that the parser quotes."""
    problem: str | None = getattr(error, "problem", None)
    place: Any = getattr(error, "problem_mark", None)
    where = "" if place is None else f" in line {place.line + 1}, column {place.column + 1}"
    return f"{problem or ' '.join(str(error).split())}{where}"
