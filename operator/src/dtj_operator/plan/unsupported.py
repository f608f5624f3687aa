"""A job that has begun, and whose spec this operator cannot read: it is left alone until it has ended.

The API server accepted the spec, so another version of the operator can read it. This happens during an
upgrade, when the CRD is newer than the operator, and after a rollback. To fail such a job would kill a run
that another version would continue.
"""

from dtj_operator.plan.snapshot import Snapshot

REASON = "UnsupportedValue"


def unsupported(s: Snapshot) -> str | None:
    """Which field this operator does not support, if the job has begun and not ended; None: it can act."""
    begun = bool(s.memory.phase or s.owned)
    if s.job.error is None or not begun or s.memory.finished:
        return None
    return (
        f"{s.job.error}. This version of the operator does not support the field's value, so it does nothing "
        "for this job and leaves its pods as they are; upgrade the operator, or change the field"
    )
