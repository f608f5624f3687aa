"""Makes text of users' programs safe to show: in a status, an Event, a log line, a terminal."""

import re

# Control characters but tab and line feed; those that show a text in another order than it has; and half
# surrogate pairs, which UTF-8 cannot encode.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Escape control characters, which can rewrite what a terminal shows; keep tabs and line feeds."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """The same, with tabs and line feeds escaped too."""
    return printable(text).replace("\t", "\\t").replace("\n", "\\n")
