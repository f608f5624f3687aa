"""Parses the flags and runs the operator."""

import os
import sys

from dtj_operator import log, settings, shell
from dtj_operator.kube.config import NoCluster


def main() -> None:
    """Run the operator. Entry point of the distribution and of `python -m dtj_operator`."""
    parsed = settings.parse(sys.argv[1:], os.environ)
    log.configure(parsed.log_level, parsed.log_format)
    try:
        shell.run(parsed)
    except (NoCluster, shell.CannotStart) as error:
        sys.exit(f"dtj-operator: {error}")


if __name__ == "__main__":
    main()
