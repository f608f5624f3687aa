"""What dtj itself says among the output of the program."""

import sys


def say(message: object) -> None:
    """Print it on stderr, at once."""
    print(f"dtj: {message}", file=sys.stderr, flush=True)
