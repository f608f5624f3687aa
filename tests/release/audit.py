"""`make audit`: looks up every locked Python package in PyPI's advisories.

python -m tests.release.audit                      ask PyPI
python -m tests.release.audit --advisories FOLDER  read a checkout of PyPI's advisory database
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import config
from tests.cluster.errors import ClusterError
from tests.release import advisories, environment

LOCKS = tuple(
    sorted(
        path
        for pattern in ("images/*/*requirements.txt", "requirements/*.txt")
        for path in config.ROOT.glob(pattern)
        if path.name != "overrides.txt"  # it is read when the others are written
    )
)


def main() -> int:
    """Audit all lock files; return 1 if a package is vulnerable or could not be looked up."""
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__)
    parser.add_argument("--advisories", type=Path, help="checkout of PyPI's advisory database")
    folder = parser.parse_args().advisories
    try:
        if folder is None:
            return audit(LOCKS)
        with advisories.served(folder) as url:
            return audit(LOCKS, "--vulnerability-service=osv", f"--osv-url={url}")
    except ClusterError as error:
        print(f"audit: {error}", file=sys.stderr)
        return 1


def audit(locks: Sequence[Path], *flags: str) -> int:
    """Run pip-audit on lock files; return its exit status."""
    # The lock files name all dependencies, so nothing has to be resolved or installed. Without --strict, a
    # package that PyPI does not answer for counts as harmless.
    done = subprocess.run(
        [
            environment.python(),
            "-m",
            "pip_audit",
            "--strict",
            "--disable-pip",
            "--require-hashes",
            "--progress-spinner=off",
            *flags,
            *(word for lock in locks for word in ("-r", str(lock))),
        ],
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
        check=False,
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
