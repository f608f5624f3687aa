"""Seconds of a job by what they were good for. Pure: `now` is seconds of any clock that goes forward.

startup     until the first step is done
productive  steps that moved the run beyond where it had been
lost        steps, and parts of one, that had to be done again
recovering  from a fault until the next step is done
"""

from dataclasses import dataclass, field

KINDS = ("productive", "startup", "lost", "recovering")


@dataclass(kw_only=True)
class Ledger:
    """Every second since its making is in exactly one of the kinds."""

    since: float
    best_step: int = -1
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    _phase: str = "startup"

    def stepped(self, step: int, now: float) -> None:
        """The job completed this step; the time since the last event went into it."""
        if self._phase:
            self._book(self._phase, now)
        else:
            self._book("productive" if step > self.best_step else "lost", now)
        self._phase = ""
        self.best_step = max(self.best_step, step)

    def fault(self, now: float) -> None:
        """Something broke: the step under way is lost, and until the next one the job recovers."""
        self._book(self._phase or "lost", now)
        self._phase = self._phase or "recovering"

    def at(self, now: float) -> dict[str, float]:
        """The books as they would stand if the present step ended now."""
        kind = self._phase or "productive"
        return self.seconds | {kind: self.seconds[kind] + now - self.since}

    def _book(self, kind: str, now: float) -> None:
        self.seconds[kind] += now - self.since
        self.since = now
