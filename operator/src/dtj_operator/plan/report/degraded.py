"""What is wrong with a job that trains: a hang that is only reported, silence, failed saves, a straggler.

The message of an incident stays as it was first written, so that changing numbers cause no further writes.
"""

from dtj_operator.model.memory import RUNNING
from dtj_operator.plan.isolation import ISOLATED_AFTER_S, silent_pods, unanswering
from dtj_operator.plan.snapshot import Snapshot

HANG, SILENT, SAVE_FAILED, STRAGGLER = REASONS = ("Hang", "AgentSilent", "SaveFailed", "Straggler")
NAMED = 5  # ranks or pods in a sentence


def degraded_by(s: Snapshot) -> tuple[str, str] | None:
    """Return (reason, message) for the condition Healthy, or None if all is well."""
    found = _hang(s) or _silent(s) or _save_failure(s) or _straggler(s)
    known = s.memory.condition("Healthy")
    stored = str(known.get("message", ""))
    if found is None:
        # This process has just started to ask: until the agent answers, nothing says that it is over.
        unasked = s.answer is None and s.memory.phase == RUNNING and known.get("reason") in REASONS
        return (known["reason"], stored) if unasked else None
    reason, who, what = found
    same = known.get("reason") == reason and stored.startswith(f"{who} ")
    return reason, stored if same else f"{who} {what}"


def _hang(s: Snapshot) -> tuple[str, str, str] | None:
    hang = s.answer.hang if s.answer else None
    if hang is None:
        return None
    who = _listed([_who(s, rank) for rank in hang.ranks]) or "the job"
    why = f": {hang.message}" if hang.message else ""
    verb = "is hung" if len(hang.ranks) <= 1 else "are hung"
    return HANG, who, f"{verb}{why}; not restarted because spec.hang.action is Report"


def _silent(s: Snapshot) -> tuple[str, str, str] | None:
    """Replicas that replica 0 does not hear, or replica 0, if it is not known which pod is isolated."""
    if (first := unanswering(s)) is not None:
        return (
            SILENT,
            f"{first.name} on node {first.node}",
            "runs, but its agent does not answer the operator, and no other agent is known to hear it; "
            "the operator replaces no pod: delete this one if it is cut off or stopped",
        )
    began = s.memory.changed_at
    if began is None or s.now - began < ISOLATED_AFTER_S:  # after a recovery, pods may still be starting
        return None
    pods = [pod for _, pod in sorted(silent_pods(s, for_s=ISOLATED_AFTER_S).items())]
    if not pods:
        return None
    return (
        SILENT,
        _listed([f"{pod.name} on node {pod.node}" for pod in pods]),
        "runs, but sends no heartbeats to replica 0; the operator replaces no pod: delete the isolated one",
    )


def _save_failure(s: Snapshot) -> tuple[str, str, str] | None:
    why = s.answer.save_failure if s.answer else None
    return (SAVE_FAILED, "training continues, but no checkpoint can be written:", why) if why else None


def _straggler(s: Snapshot) -> tuple[str, str, str] | None:
    slowest = s.answer.slowest if s.answer else None
    if slowest is None:
        return None
    slow = "longer than" if slowest.ratio is None else f"{slowest.ratio:.1f} times as long as"
    return (
        STRAGGLER,
        _who(s, slowest.rank, slowest.replica),
        f"takes {slow} the other ranks for its part of a step",
    )


def _listed(names: list[str]) -> str:
    """The first few of these ranks or pods, and how many more there are."""
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*names[:NAMED], *more])


def _who(s: Snapshot, rank: int, replica: int | None = None) -> str:
    replica = rank // s.job.processes if replica is None else replica
    pod = s.current.get(replica)
    where = f" on node {pod.node}" if pod is not None and pod.node else ""
    return f"rank {rank} (replica {replica}){where}"
