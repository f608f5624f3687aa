"""The log line about what the operator decided for a job: plain fields, which log systems query."""

from dtj_operator.model.json import Json, without_none
from dtj_operator.plan.actions import Restart, Verdict
from dtj_operator.plan.snapshot import Snapshot


def decision_line(s: Snapshot, verdict: Verdict | None, new: Json) -> Json | None:
    """The fields of the one line about this write of the status, or None if nothing was decided.

    decision  the verdict, such as Restart; Replace: a restart of some pods only; Avoid: of nodes, without a
              verdict; Observe: the phase follows the pods
    attempt   the one that the decision leads to
    replica   the replica at fault, if there is one
    """
    avoids = sorted(avoided_nodes(new) - avoided_nodes(s.memory.raw))
    if verdict is None and not avoids and new.get("phase", "") == s.memory.phase:
        return None
    fault, replaces = getattr(verdict, "fault", None), getattr(verdict, "replaces", None)
    fields = {
        "decision": _name(verdict, avoids=bool(avoids)),
        "reason": getattr(verdict, "reason", fault.reason if fault else None),
        "attempt": new.get("attempt", 0),
        "replica": fault.replica if fault else None,
        "rank": fault.rank if fault else None,
        "node": fault.node or None if fault else None,
        "counted": getattr(verdict, "counts", None),
        "replaces": None if replaces is None else [index for index, _ in replaces],
        "size": getattr(verdict, "size", None),
        "avoids": avoids or None,
        "from": s.memory.phase,
        "to": new.get("phase", ""),
        "why": getattr(verdict, "message", None) or getattr(verdict, "why", None) or new.get("message", ""),
    }
    return without_none(fields)


def _name(verdict: Verdict | None, *, avoids: bool) -> str:
    if verdict is None:
        return "Avoid" if avoids else "Observe"
    replaces = isinstance(verdict, Restart) and verdict.replaces is not None
    return "Replace" if replaces else type(verdict).__name__


def avoided_nodes(status: Json) -> set[str]:
    """Names of the nodes that new pods avoid."""
    return {entry.get("node", "") for entry in status.get("avoidedNodes") or () if "until" in entry}
