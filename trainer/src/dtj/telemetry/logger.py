"""run.log -> about one line per second; values stay on the device until a line is due.

Which step is logged is the same on all ranks: the first, the last, those of --log-every, or one that they
agreed on (agreement.py). A rank may make further lines (`now`), which are delivered with the next of those.
Lines of the same step are merged by the names of their values.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from dtj.errors import RecipeError
from dtj.settings import Settings
from dtj.telemetry import metrics, report_pipe
from dtj.telemetry.metric_files import curves, open_for
from dtj.telemetry.sinks import OnLine

_LINE_INTERVAL_S = 1.0


class Line(NamedTuple):
    """What one rank logged in one step.

    at         the rank's clock, in seconds
    samples    of all ranks, since the start
    data_wait  share of the time that the rank waited for data, 0 to 1
    """

    step: int
    at: float
    samples: int
    epoch: int
    data_wait: float
    values: dict[str, float]


class Logger:
    """Collects the values of the present step and decides when a line is due. Only rank 0 prints.

    is_due  this step will be logged; the same on every rank. Set also when all ranks have agreed to log it
    """

    def __init__(
        self, *, settings: Settings, rank: int, meter: metrics.Meter, callbacks: Sequence[OnLine] = ()
    ) -> None:
        """callbacks: called on rank 0 with the step and the values of each line."""
        self.meter = meter
        self._callbacks = callbacks
        self._every = settings.log_every
        self._json = settings.log_format == "json"
        self._rank = rank
        targets = settings.metrics if rank == 0 else ()
        self._files = [open_for(target, step=meter.step) for target in targets]
        self._values: dict[str, torch.Tensor | float] = {}
        self.is_due = True  # at first: a line shows that training runs
        self._now = False
        self._requested = False
        self._pending: list[Line] = []
        self._printed = meter.step  # the last step of which a line was printed
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
                continue
            try:
                value.__float__()
            except (AttributeError, TypeError, OverflowError):
                raise RecipeError(
                    f"run.log got {name}={value!r}, expected a number", fix="log numbers or tensors"
                ) from None
        # Without its graph, which would keep activations until the next step.
        self._values |= {
            _printable(name): value.detach() if isinstance(value, torch.Tensor) else value
            for name, value in values.items()
        }
        self._now = self._now or now

    def forget(self) -> None:
        """The message in flight is lost; log the next step instead."""
        self._requested, self.is_due = False, True

    def begin(self, step: int) -> None:
        """Called before `step`; the last step is always logged."""
        self._values = {n: v for n, v in self._values.items() if not isinstance(v, torch.Tensor)}
        self.meter.begin_step()
        on_flag = self._every is not None and step % self._every == 0
        self.is_due = self.is_due or on_flag or step == self.meter.total_steps

    def wants_line(self) -> bool:
        """Ask all ranks to log a step: rank 0 about once a second, any rank if it has lines to deliver."""
        if self._requested:
            return False
        is_time = (
            self._rank == 0 and self._every is None and self.meter.seconds_since_line() >= _LINE_INTERVAL_S
        )
        self._requested = is_time or bool(self._pending)
        return self._requested

    def end(self, step: int, *, samples: int, epoch: int, waited_s: float) -> None:
        """Make the line of `step`, if it is logged or this rank asked for it. Waits for the device.

        samples   of all ranks, since the start
        waited_s  seconds that this rank has waited for data, since the start
        """
        if not self.is_due and not self._now:
            return
        values = {name: float(value) for name, value in self._values.items()}
        wait = self._wait_since_line(waited_s)
        self._pending.append(Line(step, self.meter.clock(), samples, epoch, wait, values))
        self._values, self.is_due, self._now = {}, False, False

    def pending(self) -> str:
        """The lines of this rank that are not delivered, as text."""
        return json.dumps(self._pending)

    def deliver(self, texts: Collection[str]) -> None:
        """The lines of all ranks have arrived at rank 0 (texts), which prints them."""
        by_step = defaultdict(list)
        for text in texts:
            for fields in json.loads(text):
                line = Line(*fields)
                by_step[line.step].append(line)
        for step in sorted(by_step):
            if step > self._printed:  # else a rank did not see that its line was delivered
                self._print_merged(by_step[step])
        self._pending, self._requested = [], False

    def _print_merged(self, lines: list[Line]) -> None:
        """Print the lines of one step, rank 0's first if it has one, with the means of equal names."""
        first = lines[0]
        found: dict[str, list[float]] = defaultdict(list)
        for line in lines:
            for name, value in line.values.items():
                found[name].append(value)
        reading = self.meter.reading(
            step=first.step,
            at=first.at if first in self._pending else self.meter.clock(),
            samples=first.samples,
            epoch=first.epoch,
            metrics={name: sum(values) / len(values) for name, values in found.items()},
            data_wait=sum(line.data_wait for line in lines) / len(lines),
        )
        self._printed = first.step
        self._print(reading, list(found))

    def _wait_since_line(self, waited_s: float) -> float:
        """Waiting time for data, as a share of the time since the last line."""
        before_s, since = self._waited
        now = self.meter.clock()
        self._waited = (waited_s, now)
        return min(1.0, (waited_s - before_s) / (now - since)) if now > since else 0.0

    def _print(self, reading: metrics.Reading, names: list[str]) -> None:
        report_pipe.send(fit_report(metrics.finite(reading), names))
        of_step = metrics.finite(metrics.of_step(reading, names))
        for file in self._files:
            file.write(of_step)
        for callback in self._callbacks:
            callback(reading["step"], dict(curves(of_step)))
        print(metrics.as_json(reading) if self._json else metrics.as_text(reading), flush=True)


def _printable(name: str) -> str:
    """A name that files and terminals take: one that was read from a file may hold half a character."""
    return name.encode(errors="backslashreplace").decode()


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
