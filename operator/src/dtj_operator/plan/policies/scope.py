"""Can the agents of this attempt recover in place when a pod is replaced?"""

from dtj_operator.plan.actions import UseReplicaScope
from dtj_operator.plan.snapshot import Snapshot


def use_replica_scope(s: Snapshot) -> UseReplicaScope | None:
    """Recorded in the status before anything relies on it; every attempt has to report it again."""
    is_news = s.rejoins and not s.memory.private.rejoins
    return UseReplicaScope() if is_news and s.job.recovery.scope == "Auto" else None
