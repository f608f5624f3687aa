"""Which pods are recreated so that each is placed on its own, because their PodGroup will never be complete?

A pod lost its schedulingGroup when it was created, as at an API server whose feature gate is still off, while
others of the job have it. Or PodGroups were switched off between two pods of a job. The scheduler would wait
for the whole group, and nothing else would end that.
"""

from dtj_operator.plan import gang
from dtj_operator.plan.actions import Ungroup
from dtj_operator.plan.policies.restart import listable
from dtj_operator.plan.snapshot import Snapshot


def ungroup(s: Snapshot) -> Ungroup | None:
    found = listable(s, ((pod.index, pod.uid) for pod in gang.stranded(s)))
    return Ungroup(found) if found else None
