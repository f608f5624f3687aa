"""The table of values in the chart's README, from the comments in values.yaml; `make format` renews it.

A row has the values below one comment, their defaults, and the first sentence of the comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from tests.docs.blocks import ROOT, with_table

VALUES = ROOT / "charts/dtj-operator/values.yaml"
PAGE = ROOT / "charts/dtj-operator/README.md"
HEAD = "| value | default | what it does |\n|---|---|---|\n"
END = "...\n"  # of a document
WHOLE = {"resources", "podSecurityContext", "securityContext"}  # given as a whole, although they have lines


def rows() -> Iterator[str]:
    """Yield the rows of the table."""
    text = VALUES.read_text()
    rows: list[tuple[str, list[str], list[str]]] = []
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    for name, comment, default in described(root, text.splitlines(), ""):
        if comment or not rows:
            rows.append((comment, [], []))
        rows[-1][1].append(f"`{name}`")
        rows[-1][2].append(default)
    for comment, names, defaults in rows:
        given = defaults if len(set(defaults)) > 1 else defaults[:1]
        yield f"| {', '.join(names)} | {', '.join(given)} | {comment} |\n"


def described(mapping: yaml.MappingNode, lines: list[str], path: str) -> Iterator[tuple[str, str, str]]:
    """Yield each value: its name, what the comments above it and its group say first, and its default."""
    for key, value in mapping.value:
        above = comment_above(lines, key.start_mark.line)
        name = f"{path}{key.value}"
        if isinstance(value, yaml.MappingNode) and not value.flow_style and key.value not in WHOLE:
            for number, (child, comment, default) in enumerate(described(value, lines, f"{name}.")):
                of_group = [first_sentence(above)] if number == 0 else []
                yield child, ". ".join(filter(None, [*of_group, comment])), default
        else:
            yield name, first_sentence(above), shown(value)


def comment_above(lines: list[str], line: int) -> str:
    """Return the lines of comment that end above a line, as one."""
    found: list[str] = []
    while line and (text := lines[line - 1].strip()).startswith("#"):
        found.insert(0, text.removeprefix("#").strip())
        line -= 1
    return " ".join(found)


def shown(value: yaml.Node) -> str:
    """Return a default as it is written in one line."""
    loaded = yaml.safe_load(yaml.serialize(value))
    text = yaml.safe_dump(loaded, default_flow_style=True, width=10_000, sort_keys=False)
    return f"`{text.removesuffix(END).strip()}`"


def first_sentence(comment: str) -> str:
    """Return the text up to the first full stop, without it."""
    return re.split(r"\.(?= [A-Z0-9]|$)", comment, maxsplit=1)[0]


def renewed(page: str) -> str:
    """Return the page with the table of today's values."""
    return with_table(page, HEAD, rows())


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
