"""Kinds of flags: how a value is read from text, and what the command line needs to know of each."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dtj.errors import RecipeError


def whole(name: str, text: str, *, least: int, fix: str) -> int:
    """The number that `text` is; RecipeError where it is no whole one of at least `least`."""
    if not text.isdecimal() or int(text) < least:
        raise RecipeError(f"{name} is {text!r}, expected a whole number of at least {least}", fix=fix)
    return int(text)


class Kind(Protocol):
    """How the text of a variable becomes a value; RecipeError, which gives `name`, where it cannot."""

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
    """Anything; form: as it is shown to people."""

    form: str

    def read(self, name: str, text: str) -> str:
        del name
        return text


@dataclass(frozen=True)
class Place(Text):
    """A FILE or a FOLDER, as form says; absolute by the time that a rank reads it."""


@dataclass(frozen=True)
class Places(Text):
    """Several, one a line."""

    def read(self, name: str, text: str) -> tuple[str, ...]:  # type: ignore[override]
        del name
        return tuple(text.splitlines())


@dataclass(frozen=True)
class OneOf:
    """A word out of some."""

    known: Collection[str]

    def read(self, name: str, text: str) -> str:
        if text not in self.known:
            raise RecipeError(f"{name} is {text!r}", fix=f"choose one of {', '.join(self.known)}")
        return text


@dataclass(frozen=True, kw_only=True)
class Choice:
    """`diloco:20` as name and amount."""

    name: str
    amount: float | None


@dataclass(frozen=True)
class OneWithAmount:
    """A word, for some with a number: word -> K (steps), RANK, PERCENT, or "" where none follows.

    K must be there, the others have defaults; all but PERCENT, which is at most 100, are whole.
    """

    known: Mapping[str, str]

    @property
    def form(self) -> str:
        """The choices, as people write them."""
        endings = {"": "", "K": ":K"}
        return "|".join(word + endings.get(what, f"[:{what}]") for word, what in self.known.items())

    def read(self, name: str, text: str) -> Choice:
        word, colon, number = text.partition(":")
        takes = self.known.get(word)
        if takes is None or (colon and not takes):
            raise RecipeError(f"{name} is {text!r}", fix=f"choose one of {self.form.replace('|', ', ')}")
        if takes == "K" and not colon:
            raise RecipeError(f"{name} is {text!r}: every how many steps?", fix=f"for example {word}:8")
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
                f"{name} is {text!r}, expected {wanted} after {word}:", fix=f"write {word}:8, say"
            )
        return Choice(name=word, amount=amount)


@dataclass(frozen=True, kw_only=True)
class Flag:
    """What the command line needs to know of a setting; option: where it is not the field's name."""

    kind: Kind
    help: str
    option: str = ""


def flag(kind: Kind, help: str, *, default: Any = None, option: str = "") -> Any:  # noqa: A002
    """A field of a data class that the command line offers too."""
    return field(default=default, metadata={"flag": Flag(kind=kind, help=help, option=option)})
