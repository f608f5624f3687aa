"""Reports tests that no make target runs, and make targets on Markdown pages that the Makefile lacks."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt

SUITES = ("unit", "process", "integration", "e2e", "contract", "docs", "gpu")
MAKE = re.compile(r"^[ $]*make((?: +[\w=./~-]+)+)")
TARGET = re.compile(r"[a-z][a-z0-9-]*")


def stray_tests(tests: Path) -> Iterator[str]:
    for file in sorted(tests.rglob("test_*.py")):
        if file.relative_to(tests).parts[0] not in SUITES:
            yield f"{file}:1: no suite runs this test: move it to a folder of {tests}/ ({', '.join(SUITES)})"


def unknown_targets(pages: list[Path], makefile: Path) -> Iterator[str]:
    known = set(re.findall(r"^([a-z0-9-]+):", makefile.read_text(), re.MULTILINE))
    for page in pages:
        for line, code in code_lines(page.read_text()):
            command = MAKE.match(code)
            for word in command[1].split() if command else []:
                if TARGET.fullmatch(word) and word not in known:
                    yield f"{page}:{line}: the Makefile has no target {word}; see `make help`"


def code_lines(page: str) -> Iterator[tuple[int, str]]:
    """Line numbers and lines of code blocks; of code within a paragraph the number is the paragraph's."""
    for block in MarkdownIt().enable("table").parse(page):
        first = (block.map or [0])[0] + (2 if block.type == "fence" else 1)
        for token in [block, *(block.children or [])]:
            if token.tag == "code":
                yield from enumerate(token.content.splitlines(), first)


if __name__ == "__main__":
    files = [file for root in map(Path, sys.argv[1:]) for file in [root, *sorted(root.rglob("*"))]]
    pages = [file for file in files if file.suffix == ".md"]
    found = [*stray_tests(Path("tests")), *unknown_targets(pages, Path("Makefile"))]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
