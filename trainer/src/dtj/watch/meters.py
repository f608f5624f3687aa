"""Numbers of a step -> a line for people or machines, and a report for the agent. Rank 0 only.

step 120/2000  epoch 3  loss 0.2130  accuracy 0.9722  812 samples/s  eta 0:31
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

# Fields of /status in docs/contract.md that a logged step fills.
Reading = dict[str, Any]


@dataclass(kw_only=True)
class Meters:
    """Remembers the last line, to know rates; `clock` gives seconds, only differences matter."""

    total_steps: int
    clock: Callable[[], float]
    step: int = 0
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._since = self.clock()

    def seconds_since_line(self) -> float:
        """Since the last reading, or since the start."""
        return self.clock() - self._since

    def reading(self, *, step: int, samples: int, epoch: int, metrics: dict[str, float]) -> Reading:
        """Fields of docs/contract.md for one logged step; `samples` counts all ranks since the start."""
        now = self.clock()
        elapsed = now - self._since
        done = step - self.step
        per_second = (samples - self.samples) / elapsed if elapsed > 0 and done > 0 else None
        eta = (self.total_steps - step) * elapsed / done if done > 0 else None
        self._since, self.step, self.samples = now, step, samples
        self.metrics |= metrics
        others = {name: value for name, value in self.metrics.items() if name != "loss"}
        return {
            "step": step,
            "totalSteps": self.total_steps,
            "epoch": epoch,
            "loss": self.metrics.get("loss"),
            "metrics": others,
            "samplesPerSecond": per_second,
            "etaSeconds": eta,
        }


def as_text(reading: Reading) -> str:
    """One line for a person."""
    parts = [f"step {reading['step']}/{reading['totalSteps']}", f"epoch {reading['epoch']}"]
    if reading["loss"] is not None:
        parts.append(f"loss {_short(reading['loss'])}")
    parts += [f"{name} {_short(value)}" for name, value in reading["metrics"].items()]
    if reading["samplesPerSecond"] is not None:
        parts.append(f"{reading['samplesPerSecond']:.0f} samples/s")
        parts.append(f"eta {timedelta(seconds=round(reading['etaSeconds']))}")
    return "  ".join(parts)


def as_json(reading: Reading) -> str:
    """One line for a machine; numbers that JSON does not have become null."""
    return json.dumps(finite(reading))


def finite(value: Any) -> Any:
    """The same structure with NaN and infinities as None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _short(value: float) -> str:
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3e}"
