"""Completes commands: kubectl runs `kubectl_complete-dtj` with the words after `kubectl dtj`."""

import sys

import click
from click.shell_completion import ShellComplete

from dtj_client.cli.commands import dtj

_NO_FILES = ":4"  # kubectl reads this as: complete these words, not the names of files
_FILES = ":0"


def main(words: list[str] | None = None) -> None:
    """Print the words that can stand at the end of the line, as kubectl reads them."""
    *before, typed = (sys.argv[1:] if words is None else words) or [""]
    found = ShellComplete(dtj, {}, "kubectl dtj", "_").get_completions(before, typed)
    for each in found:
        if each.type == "plain":
            click.echo(f"{each.value}\t{each.help}" if each.help else each.value)
    click.echo(_FILES if any(each.type == "file" for each in found) else _NO_FILES)


if __name__ == "__main__":
    main()
