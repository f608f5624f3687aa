"""Is a pod's termination grace period long enough for a checkpoint? Pure.

An agreed stop takes the rest of a step, a save, and the exit of the processes. If the grace period is
shorter, Kubernetes kills the pod during the save, and the run resumes from the last periodic checkpoint. No
process would be left to log the reason, so the agent warns earlier: after the first save that is too long.
"""

# Time of an agreed stop beside the save: a message of agreement.py, a barrier, the exit of the processes.
_REST_S = 5.0


def needed(save_s: float, step_s: float) -> float:
    """Recommended grace period: twice the time of a save and a step, as a margin for slow storage."""
    return 2 * (save_s + step_s) + _REST_S


def warning(grace_s: float | None, *, save_s: float, step_s: float) -> str | None:
    """The warning to log; None if the grace period is long enough or unknown."""
    if grace_s is None or save_s + step_s + _REST_S <= grace_s:
        return None
    return (
        f"a checkpoint takes {save_s:.0f} s, but the pod is killed {grace_s:.0f} s after it is asked to"
        " terminate: the run would lose the steps since the last periodic checkpoint; set"
        f" terminationGracePeriodSeconds in the template to at least {needed(save_s, step_s):.0f}"
    )
