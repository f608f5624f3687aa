"""Where the seconds of a job went: its agents' account of each attempt, and what only the operator sees.

The agents count from their own start. What comes before it (nodes, images) is queued, and between two
attempts (old pods go, back-off, new pods come) it is recovering. So is what an agent did between its last
word and its end: nobody knows how much of that was kept. Times are whole seconds.
"""

from typing import Any

from dtj_operator.plan.actions import Restart, Suspend, Verdict
from dtj_operator.plan.attempt import begins_anew
from dtj_operator.plan.snapshot import PENDING, RECOVERING, STARTING, Ledger, Snapshot

Json = dict[str, Any]

PRODUCTIVE, STARTUP, LOST = "productiveSeconds", "startupSeconds", "lostSeconds"
RECOVERED, QUEUED = "recoveringSeconds", "queuedSeconds"
KINDS = (PRODUCTIVE, STARTUP, LOST, RECOVERED)


def goodput(s: Snapshot, verdict: Verdict | None, *, moved: bool) -> Json | None:
    """The account after this look; None where no agent has ever given one.

    moved   the present phase ends with this look
    """
    old = s.memory.goodput
    told = _fresh(s)
    if not old and told is None:
        return None
    earlier = {kind: (old.get("earlier") or {}).get(kind, 0) for kind in KINDS}
    known = {kind: old.get(kind, 0) - earlier[kind] for kind in KINDS}  # of this attempt
    # An agent that lost its memory must not make time that has passed undone.
    is_news = told is not None and sum(_of(told).values()) >= sum(known.values())
    attempt = _of(told) if told is not None and is_news else known
    queued = old[QUEUED] if QUEUED in old else _untold(s, sum(attempt.values()))
    if moved and old:
        spent = max(0, int(s.now - (s.memory.changed_at or s.now)))
        if s.memory.phase in (PENDING, STARTING):
            queued += spent
        elif s.memory.phase == RECOVERING and not any(attempt.values()):  # else the agents count it
            earlier[RECOVERED] += spent
    if is_news and any(earlier.values()):
        earlier[RECOVERED] += _untold(s, sum(earlier.values()) + sum(attempt.values()) + queued)
    account = {kind: earlier[kind] + attempt[kind] for kind in KINDS}
    total = sum(account.values()) + queued
    over = begins_anew(verdict) or isinstance(verdict, Suspend) or _loses_account(verdict)
    new: Json = {"percent": f"{100 * account[PRODUCTIVE] / total:.1f}"} if total else {}
    new |= {**account, QUEUED: queued}
    before = account if over else earlier
    return {**new, "earlier": before} if any(before.values()) else new


def _fresh(s: Snapshot) -> Ledger | None:
    """What the agent that runs now has told; an older word may be that of one that is gone."""
    if s.answer is None:
        return None
    began = s.memory.changed_at
    first = not s.memory.goodput.get("earlier")
    return s.answer.ledger if first or began is None or s.answer.observed_at > began + 1 else None


def _loses_account(verdict: Verdict | None) -> bool:
    """Replica 0's agent keeps the account, from its own start."""
    return isinstance(verdict, Restart) and 0 in dict(verdict.replaces or ())


def _of(told: Ledger) -> dict[str, int]:
    seconds = (told.productive, told.startup, told.lost, told.recovering)
    return {kind: round(value) for kind, value in zip(KINDS, seconds, strict=True)}


def _untold(s: Snapshot, told_s: int) -> int:
    """Seconds until this answer that are in no account; none after a resume, which sets startTime anew."""
    if s.memory.started_at is None or s.answer is None:
        return 0
    return max(0, int(s.answer.observed_at - s.memory.started_at) - told_s)
