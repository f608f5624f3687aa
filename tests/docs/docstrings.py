"""Our docstrings as Markdown, for the site: lines of the form "name   meaning" become a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

_NAMED = re.compile(r"^( *)(\w[\w., *]*?) {2,}(\S.*)$", re.MULTILINE)


def listed(text: str) -> str:
    """Return the text with a list instead of aligned columns."""
    return _NAMED.sub(r"\n\1- `\2`: \3", text)


class Lists(griffe.Extension):
    """Called by griffe for each object that it has read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of a function, class, attribute or module."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)
