"""The table of lines with and without dtj in docs/your-code.md; `make format` renews it."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator

from tests.docs.blocks import ROOT, with_table

PAGE = ROOT / "docs/your-code.md"
HEAD = "| program | lines with dtj | without |\n|---|---|---|\n"
WITHOUT = "tests/process/dtj/programs/foreign/loops"
_LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.COMMENT,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Lines with code: no empty lines, comments or docstrings."""
    texts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            found |= set(range(token.start[0], token.end[0] + 1))
    return len(found - texts)


def rows() -> Iterator[str]:
    """Yield a row for each program of examples/loops."""
    for path in sorted((ROOT / "examples/loops").glob("*.py")):
        with_dtj, without = code_lines(path.read_text()), code_lines((ROOT / WITHOUT / path.name).read_text())
        name = path.name
        yield f"| [{name}](../examples/loops/{name}) | {with_dtj} | [{without}](../{WITHOUT}/{name}) |\n"


def renewed(page: str) -> str:
    """Return the page with the table of today's programs."""
    return with_table(page, HEAD, rows())


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
