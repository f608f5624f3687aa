"""Kinds of flags: how each value is parsed from text, and what the command line needs to know about it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dtj.errors import RecipeError


def whole(name: str, text: str, *, least: int, fix: str) -> int:
    """Parse `text` as a whole number; RecipeError if it is not one or is less than `least`."""
    if not text.isdecimal() or int(text) < least:
        raise RecipeError(f"{name} is {text!r}, expected a whole number of at least {least}", fix=fix)
    return int(text)


class Kind(Protocol):
    """Parses the text of a variable; raises RecipeError with `name` in it for invalid text."""

    def read(self, name: str, text: str) -> Any: ...


@dataclass(frozen=True)
class Whole:
    """A whole number."""

    least: int = 1

    def read(self, name: str, text: str) -> int:
        return whole(name, text, least=self.least, fix="correct it, or leave it out")


class Positive:
    """A number above 0."""

    def read(self, name: str, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise RecipeError(
                f"{name} is {text!r}, expected a number above 0", fix="correct it, or leave it out"
            )
        return number


class Switch:
    """1 is on, 0 is off."""

    def read(self, name: str, text: str) -> bool:
        if text not in {"0", "1"}:
            raise RecipeError(f"{name} is {text!r}, expected 1 or 0", fix="correct it, or leave it out")
        return text == "1"


@dataclass(frozen=True)
class Text:
    """Any text; form: how the help shows the value."""

    form: str

    def read(self, name: str, text: str) -> str:
        del name
        return text


@dataclass(frozen=True)
class LocalPath(Text):
    """A file or folder, see form; the command line makes it absolute before a rank reads it."""

    def read(self, name: str, text: str) -> str:
        if "://" in text:
            raise RecipeError(
                f"{name} is {text!r}, but this must be a local path",
                fix="download it, or mount the storage as a volume",
            )
        return text


@dataclass(frozen=True)
class PathOrUrl(LocalPath):
    """A LocalPath, or a URL of an object store, such as s3://bucket/path."""

    def read(self, name: str, text: str) -> str:
        return text if "://" in text else super().read(name, text)


@dataclass(frozen=True)
class MetricTargets(Text):
    """Several targets of --metrics, one per line."""

    def read(self, name: str, text: str) -> tuple[str, ...]:  # type: ignore[override]
        del name
        return tuple(text.splitlines())


@dataclass(frozen=True)
class OneOf:
    """One of the known words."""

    known: Collection[str]

    def read(self, name: str, text: str) -> str:
        if text not in self.known:
            raise RecipeError(
                f"{name} is {text!r}, which is not a known value",
                fix=f"choose one of {', '.join(self.known)}",
            )
        return text


@dataclass(frozen=True, kw_only=True)
class Choice:
    """`diloco:20` as name and amount."""

    name: str
    amount: float | None


@dataclass(frozen=True)
class OneWithAmount:
    """A known word, some followed by a number: word -> K (steps), RANK, PERCENT, or "" if it takes no number.

    K is required, the others have defaults. K and RANK are whole numbers; PERCENT is at most 100.
    """

    known: Mapping[str, str]

    @property
    def form(self) -> str:
        """The choices as the help shows them."""
        endings = {"": "", "K": ":K"}
        return "|".join(word + endings.get(what, f"[:{what}]") for word, what in self.known.items())

    def read(self, name: str, text: str) -> Choice:
        word, colon, number = text.partition(":")
        takes = self.known.get(word)
        if takes is None or (colon and not takes):
            raise RecipeError(
                f"{name} is {text!r}, which is not a known value",
                fix=f"choose one of {self.form.replace('|', ', ')}",
            )
        if takes == "K" and not colon:
            raise RecipeError(
                f"{name} is {text!r}, which needs a number of steps", fix=f"for example {word}:8"
            )
        if not colon:
            return Choice(name=word, amount=None)
        try:
            amount = float(number)
        except ValueError:
            amount = 0.0
        if takes == "PERCENT":
            fits, wanted = 0 < amount <= 100, "a number above 0 and at most 100"
        else:
            fits, wanted = amount >= 1 and amount.is_integer(), "a whole number of at least 1"
        if not fits:
            raise RecipeError(
                f"{name} is {text!r}, expected {wanted} after {word}:", fix=f"for example {word}:8"
            )
        return Choice(name=word, amount=amount)


@dataclass(frozen=True, kw_only=True)
class Flag:
    """What the command line needs to know about a setting; option: if it differs from the field's name."""

    kind: Kind
    help: str
    option: str = ""


def flag(kind: Kind, help: str, *, default: Any = None, option: str = "") -> Any:  # noqa: A002
    """A data class field that is also a command-line flag."""
    return field(default=default, metadata={"flag": Flag(kind=kind, help=help, option=option)})
