"""Who holds the others up, in words: ranks that hang where that is only to be reported, or that are slow.

The words of one incident stay what they were at first: numbers that move must not be written again and again.
"""

from dtj_operator.plan.snapshot import Snapshot

HANG, STRAGGLER = "Hang", "Straggler"
NAMED = 5  # ranks in a sentence


def held_up_by(s: Snapshot) -> tuple[str, str] | None:
    """Return (reason, message) for the condition Healthy, or None where all keep step."""
    found = _hang(s) or _straggler(s)
    if found is None:
        return None
    reason, who, what = found
    known = s.memory.condition("Healthy") or {}
    said = str(known.get("message", ""))
    same = known.get("reason") == reason and said.startswith(f"{who} ")
    return reason, said if same else f"{who} {what}"


def _hang(s: Snapshot) -> tuple[str, str, str] | None:
    told = s.answer.hang if s.answer else None
    if told is None:
        return None
    ranks = [_who(s, rank) for rank in told.ranks[:NAMED]]
    more = [f"{len(told.ranks) - NAMED} more"] if len(told.ranks) > NAMED else []
    why = f": {told.message}" if told.message else ""
    verb = "is hung" if len(told.ranks) <= 1 else "are hung"
    return (
        HANG,
        ", ".join([*ranks, *more]) or "the job",
        f"{verb}{why}; not restarted because spec.hang.action is Report",
    )


def _straggler(s: Snapshot) -> tuple[str, str, str] | None:
    told = s.answer.slowest if s.answer else None
    if told is None:
        return None
    slow = "longer than" if told.ratio is None else f"{told.ratio:.1f} times as long as"
    return STRAGGLER, _who(s, told.rank, told.replica), f"takes {slow} the other ranks for its part of a step"


def _who(s: Snapshot, rank: int, replica: int | None = None) -> str:
    replica = rank // s.job.processes if replica is None else replica
    pod = s.current.get(replica)
    where = f" on node {pod.node}" if pod is not None and pod.node else ""
    return f"rank {rank} (replica {replica}){where}"
