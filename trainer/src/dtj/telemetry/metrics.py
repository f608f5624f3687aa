"""The numbers of a logged step -> a text or JSON line, and a report for the agent. Rank 0 only.

step 120/2000  epoch 3  loss 0.2130  accuracy 0.9722  812 samples/s  data wait 2%  eta 0:00:31
"""

import contextlib
import json
import math
import statistics
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from dtj.telemetry import flops


class Event(Protocol):
    """A point in the work of an accelerator, as torch.cuda.Event(enable_timing=True)."""

    def record(self) -> None: ...
    def query(self) -> bool: ...  # True if the accelerator has come there; does not wait
    def elapsed_time(self, end_event: Any) -> float: ...  # milliseconds


# Fields of /status in docs/contract.md that a logged step fills.
Reading = dict[str, Any]

# Number of steps over which the percentiles of the step time are taken.
_WINDOW = 1000
# A century: such a loop ends in another way, e.g. by run.finish, so no ETA is shown.
_ENDLESS_S = 100 * 365 * 86400

# What follows the metrics in a line of text.
_SHOWN: dict[str, Callable[[float], str]] = {
    "samplesPerSecond": lambda rate: f"{rate:.0f} samples/s",
    "tokensPerSecond": lambda rate: f"{rate:.0f} tokens/s",
    "mfu": lambda share: f"mfu {100 * share:.1f}%",
    "dataWait": lambda share: f"data wait {100 * share:.0f}%",
    "etaSeconds": lambda seconds: f"eta {timedelta(seconds=round(seconds))}",
}


@dataclass(kw_only=True)
class Meter:
    """Computes rates from one line to the next; `clock` returns seconds, only differences matter.

    tokens            tokens per sample; None if samples are not text
    flops_per_sample  operations of this rank per sample of the global batch; None until counted, in all
                      passes of the first step that has some
    peak_flops        peak FLOP/s of this rank's device (--peak-tflops)
    memory            () -> peak memory of this rank in bytes
    event             makes an event of the accelerator; None on a CPU, whose steps the clock measures. An
                      accelerator runs behind the program: the clock would measure how fast work is queued
    """

    total_steps: int
    clock: Callable[[], float]
    step: int = 0
    samples: int = 0
    tokens: int | None = None
    flops_per_sample: float | None = None
    peak_flops: float | None = None
    memory: Callable[[], int] | None = None
    event: Callable[[], Event] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    _lengths: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    _stepped_at: float | None = None
    _begun: deque[Event] = field(default_factory=deque)  # the last step that was measured, and those since

    def __post_init__(self) -> None:
        self._began, self._first_step = self.clock(), self.step
        self._since = self._began
        self._counts = self.flops_per_sample is None

    def seconds_since_line(self) -> float:
        """Seconds since the last reading, or since the start."""
        return self.clock() - self._since

    def begin_step(self) -> None:
        """Start a step. It lasts until the next call, so it includes evaluation and saving. Never waits."""
        self._counts = self.flops_per_sample is None
        if self.event is not None:
            begun = self.event()
            begun.record()
            self._begun.append(begun)
            while len(self._begun) > 1 and self._begun[1].query():
                milliseconds = self._begun.popleft().elapsed_time(self._begun[0])
                self._lengths.append(milliseconds / 1000)
            return
        now = self.clock()
        if self._stepped_at is not None:
            self._lengths.append(now - self._stepped_at)
        self._stepped_at = now

    @contextlib.contextmanager
    def counting(self, samples: int) -> Iterator[None]:
        """Context: count the model's operations in a pass of the first step; needs peak_flops.

        samples  of the global batch
        """
        if self.peak_flops is None or not self._counts or not samples:
            yield
            return
        with flops.counting() as count:
            yield
        self.flops_per_sample = (self.flops_per_sample or 0.0) + count.of_model / samples

    def reading(
        self,
        *,
        step: int,
        at: float,
        samples: int,
        epoch: int,
        metrics: dict[str, float],
        data_wait: float | None = None,
    ) -> Reading:
        """The fields of docs/contract.md for one logged step.

        at         the clock at its end
        samples    of all ranks, since the start
        data_wait  share of the time that ranks waited for data, 0 to 1
        """
        elapsed = at - self._since
        done = step - self.step
        new = samples - self.samples  # none in a run without data
        per_second = new / elapsed if elapsed > 0 and done > 0 and new else None
        eta = (self.total_steps - step) * elapsed / done if done > 0 else math.inf
        self._since, self.step, self.samples = at, step, samples
        self.metrics |= metrics
        others = {name: value for name, value in self.metrics.items() if name != "loss"}
        return {
            "step": step,
            "totalSteps": self.total_steps,
            "epoch": epoch,
            "loss": self.metrics.get("loss"),
            "metrics": others,
            "samplesPerSecond": per_second,
            "tokensPerSecond": per_second * self.tokens if per_second and self.tokens else None,
            "mfu": self._mfu(per_second),
            "dataWait": data_wait,
            "stepSecondsP50": self._p50(),
            "stepSecondsP99": self._p99(),
            "memoryBytes": self.memory() if self.memory else None,
            "etaSeconds": eta if eta < _ENDLESS_S else None,
        }

    def _mfu(self, per_second: float | None) -> float | None:
        """Model FLOPs utilisation: operations of the model per second / peak of the device."""
        if not per_second or self.flops_per_sample is None or self.peak_flops is None:
            return None
        return self.flops_per_sample * per_second / self.peak_flops

    def summary(self, *, step: int, waited_s: float) -> str:
        """One line at the end. step: the last one; waited_s: seconds of waiting for data."""
        seconds = self.clock() - self._began
        parts = [f"{step - self._first_step} steps in {timedelta(seconds=round(seconds))}"]
        p50, p99 = self._p50(), self._p99()
        if p50 is not None and p99 is not None:
            parts.append(f"step time {1000 * p50:.1f} ms (p50), {1000 * p99:.1f} ms (p99)")
        parts.append(f"data wait {100 * waited_s / seconds if seconds else 0:.0f}%")
        if self.memory:
            parts.append(f"peak memory {self.memory() / 2**20:.0f} MiB")
        return ", ".join(parts)

    def _p50(self) -> float | None:
        return statistics.median(self._lengths) if self._lengths else None

    def _p99(self) -> float | None:
        ordered = sorted(self._lengths)
        return ordered[math.ceil(0.99 * len(ordered)) - 1] if ordered else None


def of_step(reading: Reading, names: Collection[str]) -> Reading:
    """Without values of earlier steps, which a line repeats: only what was logged for it, by these names."""
    logged = {name: value for name, value in reading["metrics"].items() if name in names}
    return reading | {"loss": reading["loss"] if "loss" in names else None, "metrics": logged}


def as_text(reading: Reading) -> str:
    """One line of text."""
    parts = [f"step {reading['step']}/{reading['totalSteps']}", f"epoch {reading['epoch']}"]
    if reading["loss"] is not None:
        parts.append(f"loss {_short(reading['loss'])}")
    parts += [f"{name} {_short(value)}" for name, value in reading["metrics"].items()]
    parts += [show(reading[name]) for name, show in _SHOWN.items() if reading[name] is not None]
    return "  ".join(parts)


def as_json(reading: Reading) -> str:
    """One line of JSON; NaN and infinities become null."""
    return json.dumps(finite(reading))


def finite(value: Any) -> Any:
    """The same structure with None for NaN and infinities."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _short(value: float) -> str:
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3e}"
