"""What a rank wrote last -> what its failure says of it. Pure."""

from collections.abc import Iterable

from dtj.agent.rank.frames import without_callers

KEPT = 100  # lines of a rank: the stack of a signal is long
_SHOWN = 8  # lines
_OF_SIGNAL = "Fatal Python error: "
_ITS_STACK = "Current thread "
_MODULES = "Extension modules: "


def last_words(recent: Iterable[bytes]) -> str:
    """The last lines; if a signal ended it, where its program was: the innermost frames come first."""
    text = without_callers(b"\n".join(recent).decode(errors="replace") + "\n")
    lines = [line for line in text.splitlines() if line and not line.startswith(_MODULES)]
    ends = [number for number, line in enumerate(lines) if line.startswith(_ITS_STACK)]
    if not ends:
        return "\n".join(lines[-_SHOWN:])
    fatal = [line for line in lines if line.startswith(_OF_SIGNAL)]
    return "\n".join([*fatal[-1:], *lines[ends[-1] :][:_SHOWN]])
