"""Is the time that a pod gets when it is asked to end enough for a checkpoint? Pure.

An agreed stop is the rest of a step, a save, and the end of the processes. Where that takes longer than the
pod has, it is killed in the middle, and the run goes on from the last periodic checkpoint: nobody is left to
say why. So it is said before, as soon as the first save shows it.
"""

# Of an agreed stop, beside the save: a message of agreement.py, a barrier, the end of the processes.
_REST_S = 5.0


def needed(save_s: float, step_s: float) -> float:
    """Seconds for a stop, where a save takes so long and a step so long: twice that, for a bad day."""
    return 2 * (save_s + step_s) + _REST_S


def warning(grace_s: float | None, *, save_s: float, step_s: float) -> str | None:
    """What is to be said, None where the time is enough or unknown."""
    if grace_s is None or save_s + step_s + _REST_S <= grace_s:
        return None
    return (
        f"a checkpoint takes {save_s:.0f} s, but the pod is killed {grace_s:.0f} s after it is asked to"
        " terminate: the run would lose the steps since the last periodic checkpoint; set"
        f" terminationGracePeriodSeconds in the template to at least {needed(save_s, step_s):.0f}"
    )
