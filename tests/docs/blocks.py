"""The code blocks of the pages (README.md, docs/, ...), and the commands in them.

What a test does with a block is decided by its info string, the words after the opening fence:

    sh                     each line is run: kubectl and helm on the kind cluster (tests/e2e/test_docs.py), or
                           with an API server alone if the page only creates objects (tests/integration/docs),
                           all else in a folder that has only our examples (tests/process/docs)
    sh not-run: REASON     commands and their flags are checked, nothing is run
    yaml                   manifests, given to a real API server as a dry run (tests/integration/docs)
    yaml cluster           the same, and applied on the kind cluster between the lines of `sh` blocks
    yaml other             manifests of other projects: given to an API server with their CRDs where those are
    python                 compiled;  python run: run;  python fragment: not even compiled
    dockerfile             checked by hadolint
    text                   anything else, such as output
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
OPERATORS = frozenset("();<>|&")  # characters of what stands between two commands of a line
ON_CLUSTER = ("kubectl", "helm")
NOT_RUN = "not-run:"
OTHER = "other"


def pages() -> list[Path]:
    """Return all pages that are checked."""
    own = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "charts/dtj-operator/README.md")
    return [*(ROOT / name for name in own), *sorted((ROOT / "docs").rglob("*.md"))]


def with_table(page: str, head: str, rows: Iterable[str]) -> str:
    """Return the page with these rows below the head of their table, in place of those that it has."""
    return re.sub(re.escape(head) + r"(\|.*\n)*", lambda _: head + "".join(rows), page, count=1)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One code block.

    line      number of the first line of its text in the page
    language  first word of the info string, empty for an indented block
    marker    the rest of the info string
    """

    page: Path
    line: int
    language: str
    marker: str
    text: str

    @property
    def place(self) -> str:
        """Return file:line."""
        return place(self.page, self.line)

    @property
    def is_run(self) -> bool:
        """Return whether its lines are run."""
        return self.language == "sh" and not self.marker


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a shell block, continuation lines included.

    commands  what the shell would start, as argument vectors
    """

    place: str
    text: str
    commands: list[list[str]]

    @property
    def on_cluster(self) -> bool:
        """Return whether it needs a cluster."""
        return self.commands[0][0] in ON_CLUSTER


def place(page: Path, line: int) -> str:
    """Return file:line, with the path from the root of the checkout."""
    return f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}:{line}"


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """Return the code blocks of a page."""
    found = []
    for token in MarkdownIt().parse(page.read_text()):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            language, _, marker = token.info.strip().partition(" ")
            first = token.map[0] + (2 if token.type == "fence" else 1)
            block = Block(page=page, line=first, language=language, marker=marker.strip(), text=token.content)
            found.append(block)
    return tuple(found)


def all_blocks(*languages: str) -> list[Block]:
    """Return the blocks of all pages in these languages, without the manifests of other projects."""
    found = (block for page in pages() for block in blocks(page) if block.language in languages)
    return [block for block in found if block.marker != OTHER]


def lines(block: Block) -> Iterator[Line]:
    """Yield the lines of a shell block that hold commands. Raises ValueError for an open quote."""
    text, first = "", 0
    for number, line in enumerate(block.text.splitlines(), block.line):
        first = first if text else number
        text += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        if commands := list(split(text)):
            yield Line(place=place(block.page, first), text=text, commands=commands)
        text = ""


def split(text: str) -> Iterator[list[str]]:
    """Yield the commands of one line, without assignments in front of them."""
    tokens = shlex.shlex(text, posix=True, punctuation_chars=True)
    tokens.whitespace_split = True
    words: list[str] = []
    for token in [*tokens, ";"]:
        if not OPERATORS.issuperset(token) and token != ";":
            if words or "=" not in token.partition("/")[0]:
                words.append(token)
        elif words:
            yield words
            words = []
