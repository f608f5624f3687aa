"""Parses the flags and runs the operator."""

import os
import resource
import sys

from dtj_operator import log, settings, shell
from dtj_operator.kube.config import NoCluster


def main() -> None:
    """Run the operator. Entry point of the distribution and of `python -m dtj_operator`."""
    parsed = settings.parse(sys.argv[1:], os.environ)
    log.configure(parsed.log_level, parsed.log_format)
    # Each watched namespace has four watches; some container runtimes start processes with 1,024 files.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        shell.run(parsed)
    except (NoCluster, shell.CannotStart) as error:
        sys.exit(f"dtj-operator: {error}")


if __name__ == "__main__":
    main()
