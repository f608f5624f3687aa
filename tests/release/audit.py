"""`make audit`: looks up every locked Python package in PyPI's advisories."""

from __future__ import annotations

import subprocess
import sys

from tests.cluster import config
from tests.cluster.errors import ClusterError
from tests.release import environment

LOCKS = tuple(
    sorted(
        [*(config.ROOT / "images").glob("*/*requirements.txt"), *(config.ROOT / "requirements").glob("*.txt")]
    )
)


def main() -> int:
    """Audit all lock files; return 1 if a package is vulnerable or could not be looked up."""
    try:
        python = environment.python()
    except ClusterError as error:
        print(f"audit: {error}", file=sys.stderr)
        return 1
    given = [word for lock in LOCKS for word in ("-r", str(lock))]
    # The lock files name all dependencies, so nothing has to be resolved or installed. Without --strict, a
    # package that PyPI does not answer for counts as harmless.
    done = subprocess.run(
        [
            python,
            "-m",
            "pip_audit",
            "--strict",
            "--disable-pip",
            "--require-hashes",
            "--progress-spinner=off",
            *given,
        ],
        check=False,
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
