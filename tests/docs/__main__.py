"""python -m tests.docs: check all pages, as `make lint` does."""

import sys

from tests.docs.blocks import pages
from tests.docs.check import problems

if __name__ == "__main__":
    found = [problem for page in pages() for problem in problems(page)]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(1 if found else 0)
