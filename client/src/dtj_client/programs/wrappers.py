"""Programs that start another one in an environment, such as `uv run` and `env`. Pure."""

import re
from collections.abc import Sequence

# Their options that take the next word as a value; all others have none, or have it in the same word.
_CONDA = frozenset({"n", "name", "p", "prefix", "cwd"})
_WRAPPERS = {
    ("uv", "run"): frozenset(
        (
            *("p", "python", "project", "directory", "package", "env-file", "extra", "group", "only-group"),
            *("no-group", "w", "with", "with-requirements", "with-editable", "i", "index", "default-index"),
        )
    ),
    ("poetry", "run"): frozenset({"C", "directory", "P", "project"}),
    ("pdm", "run"): frozenset({"p", "project"}),
    ("pixi", "run"): frozenset({"e", "environment", "m", "manifest-path"}),
    ("hatch", "run"): frozenset[str](),
    ("conda", "run"): _CONDA,
    ("mamba", "run"): _CONDA,
    ("micromamba", "run"): _CONDA,
    ("env",): frozenset({"u", "unset", "C", "chdir"}),
    ("numactl",): frozenset({"N", "cpunodebind", "m", "membind", "i", "interleave", "C", "physcpubind"}),
    ("nice",): frozenset({"n", "adjustment"}),
    ("stdbuf",): frozenset({"i", "input", "o", "output", "e", "error"}),
}


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of the wrappers, and those of the program; a wrapper without a program is one."""
    size = 0
    while length := _length(words[size:]):
        size += length
    return list(words[:size]), list(words[size:])


def _length(words: Sequence[str]) -> int:
    """How many words the wrapper has with its options; 0 if it is none, or nothing follows it."""
    name = words[0].rpartition("/")[2] if words else ""
    wrapper = next((each for each in _WRAPPERS if (name, *words[1 : len(each)]) == each), None)
    if wrapper is None:
        return 0
    at = len(wrapper)
    while at < len(words):
        word = str(words[at])
        if word == "--":
            at += 1
            break
        if not (word.startswith("-") or (name == "env" and re.match(r"\w+=", word))):
            break
        at += 2 if word.lstrip("-") in _WRAPPERS[wrapper] else 1
    return at if at < len(words) else 0
