"""python -m tests.docs.site: build the site of the docs in build/site, as `make docs` does.

Pages link to files beside docs/, as the repository shows them. So each linked file becomes part of the site:
a page of Markdown is a page, a folder is a page that lists its files, any other file is copied. README.md is
the front page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.docs.blocks import ROOT

PAGES, SITE = ROOT / "build/pages", ROOT / "build/site"
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")
FENCE = re.compile(r"^( *```\w+) .*$", re.MULTILINE)  # the words after the language are for tests
PACKAGES = ("dtj", "dtj_client")  # whose public names have a page


def links(path: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the relative links of a page as they stand, and what they lead to, as a path from the root."""
    for match in LINK.finditer(text):
        yield match[1], os.path.normpath(Path(path).parent / match[1])


def place(path: str) -> str:
    """Return where a file or a folder of the checkout is among the pages of the site."""
    if path == "README.md":
        return "index.md"
    if (ROOT / path).is_dir():
        return f"files/{path}/index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"


def source(path: str) -> str:
    """Return the text of a page; of a folder, a list of its files."""
    if (ROOT / path).is_file():
        return (ROOT / path).read_text()
    files = sorted(file.name for file in (ROOT / path).iterdir() if not file.name.startswith((".", "__")))
    folder = Path(path).name
    return f"# {path}\n\n" + "".join(f"- [{name}]({folder}/{name})\n" for name in files)


def reachable() -> set[str]:
    """Return the pages and all that they lead to, as paths from the root."""
    found: set[str] = set()
    waiting = [
        "README.md",
        *(str(file.relative_to(ROOT)) for file in (ROOT / "docs").rglob("*") if file.is_file()),
    ]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            if place(path).endswith(".md"):
                waiting += [to for _, to in links(path, source(path)) if (ROOT / to).exists()]
    return found


def page(path: str) -> str:
    """Return a page of the site: its links lead to places of the site, its fences name a language only."""
    text, here = source(path), Path(place(path)).parent
    for link, to in set(links(path, text)):
        if (ROOT / to).exists():
            text = text.replace(f"]({link}", f"]({os.path.relpath(place(to), here)}")
    return FENCE.sub(r"\1", text)


def write() -> None:
    """Write the pages from which the site is built."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in reachable():
        target = PAGES / place(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".md":
            target.write_text(page(path))
        else:
            shutil.copyfile(ROOT / path, target)
    for package in PACKAGES:
        target = PAGES / f"reference/{package}.md"
        target.parent.mkdir(exist_ok=True)
        target.write_text(f"# Python: {package}\n\n::: {package}\n")


def build() -> None:
    """Write the pages and build the site; exit if a link or an anchor is broken."""
    write()
    sys.exit(subprocess.run(["zensical", "build", "--strict", "--clean"], cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    build()
