"""What a job's spec asks of the scheduler and the cluster does not do, with what helps.

unknown topology   no node has the label that names the domains. With mode Required the job waits, with
                   Preferred it runs anywhere
gangs off          the cluster serves PodGroups, but cannot use them: the pods are placed one by one. If the
                   scheduler ignores them, that shows only once it has placed a part of a gang
"""

from dtj_operator.model.children import Refusal
from dtj_operator.plan.gang import wants_gang
from dtj_operator.plan.snapshot import Snapshot

UNKNOWN_TOPOLOGY, GANGS_OFF = "UnknownTopology", "GangsOff"


def unknown_topology(s: Snapshot) -> Refusal | None:
    """No node has the label; without nodes nothing is known."""
    topology = s.job.topology
    if topology is None or not s.nodes or any(topology.key in node.labels for node in s.nodes.values()):
        return None
    what = f"no node has the label {topology.key} of spec.scheduling.topology.key"
    then = "so the pods wait" if topology.required else "so the pods run anywhere"
    fix = "label the nodes, or delete the job and create it with another key"
    return Refusal(reason=UNKNOWN_TOPOLOGY, message=f"{what}, {then}; {fix}")


def cautions(s: Snapshot) -> list[Refusal]:
    """Everything of this kind, although the job may run."""
    found = [unknown_topology(s)]
    if s.gangs_off and wants_gang(s):
        message = f"{s.gangs_off}; until then, or with spec.scheduling.gang: None, pods are placed one by one"
        found.append(Refusal(reason=GANGS_OFF, message=message))
    return [caution for caution in found if caution is not None]
