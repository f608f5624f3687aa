"""run.log -> at most one line a second: values wait on the device until a line is due.

A line for step k is printed during step k+1, when a message (agreement.py) has brought the others' values.
"""

from collections.abc import Collection

import torch

from dtj.agreement import SLOTS
from dtj.errors import RecipeError
from dtj.settings import Settings
from dtj.telemetry import metrics, report_pipe
from dtj.telemetry.metric_files import open_for

_LINE_INTERVAL_S = 1.0
# One of the values of a message is our own: how long the rank has waited for data.
_NAMES = SLOTS - 1


class Logger:
    """Values of the present step, and where the last line was. Only rank 0 prints."""

    def __init__(self, *, settings: Settings, rank: int, meter: metrics.Meter) -> None:
        self.meter = meter
        self._every = settings.log_every
        self._json = settings.log_format == "json"
        self._rank = rank
        targets = settings.metrics if rank == 0 else ()
        self._files = [open_for(target, step=meter.step) for target in targets]
        self._values: dict[str, torch.Tensor | float] = {}
        self._due = True  # the first step shows at once that training runs
        self._asked = False
        self._sent: tuple[int, int, int, list[str]] | None = None
        self._waited = (0.0, meter.clock())  # for data so far, and when that was looked at

    def note(self, values: dict[str, torch.Tensor | float], *, now: bool) -> None:
        """Values of this step; a later one of the same name wins."""
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
        """This step is a logged one, on every rank alike."""
        return self._due

    def forget(self) -> None:
        """The message under way is lost, and the line that waited for it; the next step is a logged one."""
        self._sent, self._asked, self._due = None, False, True

    def begin(self, step: int) -> None:
        """`step` is about to be trained; the last one is always a logged one."""
        self._values = {n: v for n, v in self._values.items() if not isinstance(v, torch.Tensor)}
        self.meter.begin_step()
        on_flag = self._every is not None and step % self._every == 0
        self._due = self._due or on_flag or step == self.meter.total_steps

    def wants_line(self) -> bool:
        """Rank 0's clock says that a line is due; asked for once until it is printed."""
        if self._rank != 0 or self._every is not None or self._asked:
            return False
        self._asked = self.meter.seconds_since_line() >= _LINE_INTERVAL_S
        return self._asked

    def end(self, step: int, *, samples: int, epoch: int, waited_s: float) -> tuple[float, ...]:
        """What the message shall carry for `step`: nothing, or its values. The only wait for the device.

        waited_s  seconds that this rank has waited for data, since the start
        """
        if not self._due:
            return ()
        numbers = (self._wait_since_line(waited_s), *(float(value) for value in self._values.values()))
        self._sent = (step, samples, epoch, list(self._values))
        self._values, self._due = {}, False
        return numbers

    def receive(self, values: tuple[float, ...], *, log: bool) -> None:
        """The message is here: print the line that waited for it; `log` makes the next step a logged one."""
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
            self._asked = False

    def _wait_since_line(self, waited_s: float) -> float:
        """Share of the time since the last line."""
        before_s, since = self._waited
        now = self.meter.clock()
        self._waited = (waited_s, now)
        return min(1.0, (waited_s - before_s) / (now - since)) if now > since else 0.0

    def _print(self, reading: metrics.Reading, names: list[str]) -> None:
        report_pipe.send(for_report(metrics.finite(reading), names))
        for file in self._files:
            file.write(metrics.finite(reading))
        print(metrics.as_json(reading) if self._json else metrics.as_text(reading), flush=True)


def for_report(reading: metrics.Reading, names: Collection[str]) -> metrics.Reading:
    """With as many metrics as a report takes: those of this line (`names`) first, then what was new last.

    A program may log other names in each epoch, and all of them are kept.
    """
    room = report_pipe.MAX_BYTES - len(report_pipe.encode(reading | {"metrics": {}})) - 1
    kept = set()
    least_wanted_first = sorted(reading["metrics"].items(), key=lambda item: item[0] in names)
    for name, value in reversed(least_wanted_first):
        room -= len(report_pipe.encode({name: value}))  # its braces are the comma and the space
        if room < 0:
            break
        kept.add(name)
    return reading | {"metrics": {n: v for n, v in reading["metrics"].items() if n in kept}}
