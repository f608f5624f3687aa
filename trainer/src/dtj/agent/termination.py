"""Writes the pod's termination message, from the endings of its ranks."""

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dtj import contract
from dtj.agent import outcome
from dtj.agent.outcome import Ending
from dtj.agent.status import Status


def write(
    path: Path,
    endings: Iterable[Ending],
    status: Status,
    in_place: int | None,
    *,
    ranks: range,
    elsewhere: dict[str, Any] | None,
) -> None:
    """Write the termination message; if that fails, the exit code still says what happened."""
    fields = outcome.termination_fields(
        endings,
        ranks=ranks,
        elsewhere=elsewhere,
        checkpoint=status.checkpoint,
        generation=status.generation,
        in_place=in_place,
        now=datetime.now(UTC),
    )
    try:
        path.write_bytes(outcome.encode(outcome.fit(fields, limit=contract.TERMINATION_BYTES)))
    except OSError as error:
        print(
            f"dtj: cannot write the termination message to {path}: {error.strerror}",
            file=sys.stderr,
            flush=True,
        )
