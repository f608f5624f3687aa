"""python -m tests.cluster <verb>: what the Makefile calls."""

import argparse
import sys

from tests.cluster import images, kind, load, tools
from tests.cluster.errors import ClusterError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")

    verb = verbs.add_parser("create", help="create the four-node cluster, or reuse the existing one")
    verb.set_defaults(run=create)

    verb = verbs.add_parser("delete", help="remove the cluster and everything created with it")
    verb.set_defaults(run=lambda args: kind.delete())

    verb = verbs.add_parser("images", help="build those of the project's images that are out of date")
    verb.set_defaults(run=lambda args: print(*images.build(), sep="\n"))

    verb = verbs.add_parser("load", help="load images into the worker nodes")
    verb.add_argument("image", nargs="*", help="names in the container engine; default: the project's images")
    verb.set_defaults(run=bring)

    verb = verbs.add_parser("tools", help="build programs and print their paths")
    verb.add_argument("name", nargs="*", default=list(tools.PROGRAMS), help="default: all of them")
    verb.set_defaults(run=lambda args: print(*tools.ensure(*args.name).values(), sep="\n"))

    args = parser.parse_args()
    try:
        args.run(args)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cluster: interrupted; run the same command to continue", file=sys.stderr)
        return 130
    return 0


def create(args: argparse.Namespace) -> None:
    cluster = kind.create()
    print(f"export KUBECONFIG={cluster.kubeconfig}")


def bring(args: argparse.Namespace) -> None:
    cluster = kind.create()
    load.load(cluster, {name: name for name in args.image} or images.build())


if __name__ == "__main__":
    sys.exit(main())
