"""python -m tests.cluster <verb>: what the Makefile calls."""

import argparse
import sys

from tests.cluster import tools
from tests.cluster.errors import ClusterError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("tools", help="build programs and print their paths")
    verb.add_argument("name", nargs="*", default=list(tools.PROGRAMS), help="all of them where none is named")
    verb.set_defaults(run=lambda args: print(*tools.ensure(*args.name).values(), sep="\n"))
    args = parser.parse_args()
    try:
        args.run(args)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
