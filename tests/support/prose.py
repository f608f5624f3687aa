"""Reports words of prose.yaml in documents, comments, strings and test names: file:line, suggestion.

Why no library does it: `told` and `room` are names of variables here too. codespell, and Vale with Python
read as text, compare every word of a file; Vale with a tree-sitter view reads comments and strings, but not
test names, and needs Go, a C compiler and minutes to build. Neither sees a phrase that breaks over two lines.
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import yaml

RULES = Path(__file__).with_suffix(".yaml")
READ = re.compile(r".*\.(go|json|md|py|sh|toml|tpl|txt|yaml)|Dockerfile|Makefile|run")
GAP = r"""[\s#"']+(?:f["'])?"""  # between two words: also a line break in a comment or a string
PROSE = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def findings(roots: list[Path]) -> Iterator[str]:
    rules = yaml.safe_load(RULES.read_text())
    phrases = "|".join(f"(?P<rule{n}>{words.replace(' ', GAP)})" for n, words in enumerate(rules))
    # Whole words only, and not names: `told`, "told", not_told, answer.told, --told.
    wanted = re.compile(rf"""(?<![\w`.-])(?!(?<=["'])\w+["'])(?:{phrases})(?![\w`]|-\w)""", re.IGNORECASE)
    for file in (file for root in roots for file in [root, *sorted(root.rglob("*"))]):
        if not file.is_file() or file.samefile(RULES) or not READ.fullmatch(file.name):
            continue
        source = file.read_text()
        hits = list(wanted.finditer(only_sentences(source) if file.suffix == ".py" else source))
        prose = python_prose(source) if hits and file.suffix == ".py" else None
        for hit in hits:
            line = source.count("\n", 0, hit.start()) + 1
            place = line, hit.start() - source.rfind("\n", 0, hit.start()) - 1
            if prose is None or any(start <= place < end for start, end in prose):
                use = list(rules.values())[int(str(hit.lastgroup)[4:])]
                yield f'{file}:{line}: "{" ".join(hit[0].split())}": {use}'


def only_sentences(source: str) -> str:
    """Put spaces into test names and blank the fields of f-strings; lengths and lines stay the same."""
    text = re.sub(r"(?<=def )test_\w+", lambda name: name[0].replace("_", " "), source)
    return re.sub(r"\{[^{}\n'\"]*\}", lambda field: " " * len(field[0]), text)


def python_prose(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Start and end of each comment, string and test name."""
    return [
        (token.start, token.end)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type in PROSE or (token.type == tokenize.NAME and token.string.startswith("test_"))
    ]


if __name__ == "__main__":
    found = list(findings([Path(root) for root in sys.argv[1:]]))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
