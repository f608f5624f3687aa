"""Where the time of a job went: what its agents report for each attempt, plus what only the operator sees.

The agents count from their own start. Before that, time until all pods have a node is queued, and the rest
(images, volumes) is start-up. Time between two attempts (old pods terminate, back-off, new pods start) is
recovering. So is the time between an agent's last report and its end, because it is unknown how much of that
work was kept. Times are whole seconds.
"""

from dtj_operator.model.agent_status import Ledger
from dtj_operator.model.json import Json
from dtj_operator.model.memory import PENDING, RECOVERING, STARTING
from dtj_operator.plan.actions import Restart, Verdict, ends_attempt
from dtj_operator.plan.snapshot import Snapshot

PRODUCTIVE, STARTUP, LOST = "productiveSeconds", "startupSeconds", "lostSeconds"
RECOVERY, QUEUED = "recoveringSeconds", "queuedSeconds"
KINDS = (PRODUCTIVE, STARTUP, LOST, RECOVERY)
_PODS = "podsSeconds"  # with those of earlier attempts: start-up of the first attempt before its agents


def goodput(s: Snapshot, verdict: Verdict | None, *, moved: bool) -> tuple[Json | None, dict[str, int]]:
    """The account after this reconcile, and the part of earlier attempts; None: no agent ever reported one.

    moved   this reconcile ends the current phase
    """
    old = s.memory.goodput
    ledger = _current_ledger(s)
    if not old and ledger is None:
        return None, {}
    earlier = {kind: s.memory.private.earlier_seconds.get(kind, 0) for kind in KINDS}
    pods_s = s.memory.private.earlier_seconds.get(_PODS, 0)
    known = {kind: old.get(kind, 0) - earlier[kind] for kind in KINDS}  # of this attempt
    known[STARTUP] -= pods_s
    # An agent that lost its account must not reduce the time that is already recorded.
    is_news = ledger is not None and sum(_seconds(ledger).values()) >= sum(known.values())
    attempt = _seconds(ledger) if ledger is not None and is_news else known
    queued = old.get(QUEUED, 0)
    if QUEUED not in old:
        before_agents_s = _unaccounted_s(s, sum(attempt.values()))
        queued = _unplaced_s(s, most=before_agents_s)
        pods_s = before_agents_s - queued
    elif moved:
        spent = max(0, int(s.now - (s.memory.changed_at or s.now)))
        if s.memory.phase == PENDING and not _is_first(s):
            queued += max(0, spent - sum(attempt.values()))
        elif s.memory.phase == STARTING and not _is_first(s):
            earlier[STARTUP] += max(0, spent - sum(attempt.values()))
        elif s.memory.phase == RECOVERING and not any(attempt.values()):  # else the agents count it
            earlier[RECOVERY] += spent
    if is_news and any(earlier.values()):
        accounted_s = sum(earlier.values()) + sum(attempt.values()) + pods_s + queued
        earlier[RECOVERY] += _unaccounted_s(s, accounted_s)
    account = {kind: earlier[kind] + attempt[kind] for kind in KINDS}
    account[STARTUP] += pods_s
    total = sum(account.values()) + queued
    # The agent of replica 0 keeps the account, from its own start.
    replaces_first = isinstance(verdict, Restart) and 0 in dict(verdict.replaces or ())
    over = ends_attempt(verdict) or replaces_first
    new: Json = {**account, QUEUED: queued}
    reports_steps = account[PRODUCTIVE] or account[LOST]  # a program that does not may be busy all the time
    if total and reports_steps:
        new["percent"] = f"{100 * account[PRODUCTIVE] / total:.1f}"
    before = account if over else earlier | ({_PODS: pods_s} if pods_s else {})
    return new, before if any(before.values()) else {}


def _current_ledger(s: Snapshot) -> Ledger | None:
    """The ledger of the agent that runs now; an older answer may come from a pod that is gone."""
    if s.answer is None:
        return None
    began = s.memory.changed_at
    return s.answer.ledger if _is_first(s) or began is None or s.answer.observed_at > began + 1 else None


def _is_first(s: Snapshot) -> bool:
    """No earlier attempt is in the account: what its agents do not count, the first answer has shown."""
    return not any(s.memory.private.earlier_seconds.get(kind) for kind in KINDS)


def _seconds(ledger: Ledger) -> dict[str, int]:
    seconds = (ledger.productive, ledger.startup, ledger.lost, ledger.recovering)
    return {kind: round(value) for kind, value in zip(KINDS, seconds, strict=True)}


def _unaccounted_s(s: Snapshot, accounted_s: int) -> int:
    """Seconds until this answer that are in no account; 0 after a resume, which resets startTime."""
    if s.memory.started_at is None or s.answer is None:
        return 0
    return max(0, int(s.answer.observed_at - s.memory.started_at) - accounted_s)


def _unplaced_s(s: Snapshot, *, most: int) -> int:
    """Seconds from startTime until the last pod had a node; `most` if that is unknown."""
    scheduled = [pod.condition("PodScheduled") for pod in s.current.values()]
    placed = [each.since for each in scheduled if each and each.status == "True" and each.since is not None]
    if not placed or s.memory.started_at is None:
        return most
    return min(most, max(0, int(max(placed) - s.memory.started_at)))
