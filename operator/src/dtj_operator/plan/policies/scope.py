"""Can the agents of this attempt recover in place when a pod is replaced?"""

from dtj_operator.model.memory import REPLICA
from dtj_operator.plan.actions import UseReplicaScope
from dtj_operator.plan.snapshot import Snapshot


def use_replica_scope(s: Snapshot) -> UseReplicaScope | None:
    """Recorded in the status before anything relies on it; every attempt has to report it again."""
    able = s.answer is not None and s.answer.rejoin
    return UseReplicaScope() if able and s.job.recovery.scope == "Auto" and s.scope != REPLICA else None
