"""Writes the pod's termination message."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtj import contract
from dtj.agent.wire import outcome


def write(path: Path, fields: Mapping[str, Any]) -> None:
    """Write these fields, cut to the size of a termination message.

    If that fails, the exit code still says what happened.
    """
    try:
        path.write_bytes(outcome.encode(outcome.fit(dict(fields), limit=contract.TERMINATION_BYTES)))
    except OSError as error:
        print(
            f"dtj: cannot write the termination message to {path}: {error.strerror}",
            file=sys.stderr,
            flush=True,
        )
