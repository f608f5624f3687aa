"""run.log -> about one line per second; values stay on the device until a line is due.

The line of step k is printed at the end of step k+1, when the message (agreement.py) has delivered the means.
"""

from collections.abc import Collection

import torch

from dtj.agreement import SLOTS
from dtj.errors import RecipeError
from dtj.settings import Settings
from dtj.telemetry import metrics, report_pipe
from dtj.telemetry.metric_files import open_for

_LINE_INTERVAL_S = 1.0
# One value of each message is reserved: the share of time that the rank waited for data.
_NAMES = SLOTS - 1


class Logger:
    """Collects the values of the present step and decides when a line is due. Only rank 0 prints."""

    def __init__(self, *, settings: Settings, rank: int, meter: metrics.Meter) -> None:
        self.meter = meter
        self._every = settings.log_every
        self._json = settings.log_format == "json"
        self._rank = rank
        targets = settings.metrics if rank == 0 else ()
        self._files = [open_for(target, step=meter.step) for target in targets]
        self._values: dict[str, torch.Tensor | float] = {}
        self._due = True  # log the first step: it shows that training runs
        self._requested = False
        self._sent: tuple[int, int, int, list[str]] | None = None
        self._waited = (0.0, meter.clock())  # seconds waited for data so far, and when that was read

    def note(self, values: dict[str, torch.Tensor | float], *, now: bool) -> None:
        """Set values of this step; a later value of the same name replaces an earlier one. See Run.log."""
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                if value.numel() != 1:
                    raise RecipeError(
                        f"run.log got {name} of shape {tuple(value.shape)}, expected one element",
                        fix=f"log {name}.mean()",
                    )
            elif not hasattr(value, "__float__"):
                raise RecipeError(
                    f"run.log got {name}={value!r}, expected a number", fix="log numbers or tensors"
                )
        self._values |= values
        self._due = self._due or now
        if len(self._values) > _NAMES:
            raise RecipeError(
                f"run.log got {len(self._values)} names in one step, the maximum is {_NAMES}",
                fix="log fewer values per step",
            )

    @property
    def is_due(self) -> bool:
        """This step will be logged; the same on every rank."""
        return self._due

    def forget(self) -> None:
        """The message in flight is lost, and its line; log the next step instead."""
        self._sent, self._requested, self._due = None, False, True

    def begin(self, step: int) -> None:
        """Called before `step`; the last step is always logged."""
        self._values = {n: v for n, v in self._values.items() if not isinstance(v, torch.Tensor)}
        self.meter.begin_step()
        on_flag = self._every is not None and step % self._every == 0
        self._due = self._due or on_flag or step == self.meter.total_steps

    def wants_line(self) -> bool:
        """Rank 0 requests a line, about once a second; once until it is printed."""
        if self._rank != 0 or self._every is not None or self._requested:
            return False
        self._requested = self.meter.seconds_since_line() >= _LINE_INTERVAL_S
        return self._requested

    def end(self, step: int, *, samples: int, epoch: int, waited_s: float) -> tuple[float, ...]:
        """Values of `step` for the message; empty if no line is due. Waits for the device.

        samples   of all ranks, since the start
        waited_s  seconds that this rank has waited for data, since the start
        """
        if not self._due:
            return ()
        numbers = (self._wait_since_line(waited_s), *(float(value) for value in self._values.values()))
        self._sent = (step, samples, epoch, list(self._values))
        self._values, self._due = {}, False
        return numbers

    def receive(self, values: tuple[float, ...], *, log: bool) -> None:
        """Print the line of the message that was received; with `log`, the next step will be logged."""
        self._due = self._due or log
        if self._sent is None:
            return
        step, samples, epoch, names = self._sent
        self._sent = None
        if self._rank == 0 and values:
            wait, *rest = values
            found = dict(zip(names, rest, strict=False))
            self._print(
                self.meter.reading(step=step, samples=samples, epoch=epoch, metrics=found, data_wait=wait),
                names,
            )
            self._requested = False

    def _wait_since_line(self, waited_s: float) -> float:
        """Waiting time for data, as a share of the time since the last line."""
        before_s, since = self._waited
        now = self.meter.clock()
        self._waited = (waited_s, now)
        return min(1.0, (waited_s - before_s) / (now - since)) if now > since else 0.0

    def _print(self, reading: metrics.Reading, names: list[str]) -> None:
        report_pipe.send(fit_report(metrics.finite(reading), names))
        for file in self._files:
            file.write(metrics.finite(reading))
        print(metrics.as_json(reading) if self._json else metrics.as_text(reading), flush=True)


def fit_report(reading: metrics.Reading, names: Collection[str]) -> metrics.Reading:
    """The reading with as many metrics as fit into a report: those of this line (`names`), then the newest.

    The meter keeps all names, and a program may log new ones in each epoch.
    """
    free = report_pipe.MAX_BYTES - len(report_pipe.encode(reading | {"metrics": {}})) - 1
    kept = set()
    least_wanted_first = sorted(reading["metrics"].items(), key=lambda item: item[0] in names)
    for name, value in reversed(least_wanted_first):
        free -= len(report_pipe.encode({name: value}))  # its braces are the comma and the space
        if free < 0:
            break
        kept.add(name)
    return reading | {"metrics": {n: v for n, v in reading["metrics"].items() if n in kept}}
