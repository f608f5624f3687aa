"""run.log -> at most one line a second: values wait on the device until a line is due.

A line for step k is printed during step k+1, when the pulse has brought the other ranks' values.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from dtj.errors import RecipeError
from dtj.settings import Settings
from dtj.watch import channel, meters
from dtj.watch.book import Book
from dtj.watch.pulse import SLOTS

_LINE_INTERVAL_S = 1.0


class Diary:
    """Values of the present step, and where the last line was. Only rank 0 prints."""

    def __init__(
        self,
        *,
        settings: Settings,
        rank: int,
        clock: Callable[[], float],
        first_step: int,
        total_steps: int,
        samples: int,
    ) -> None:
        self._every = settings.log_every
        self._json = settings.log_json
        self._rank = rank
        self._book = Book(Path(settings.metrics), step=first_step) if settings.metrics and rank == 0 else None
        self._total = total_steps
        self._meters = meters.Meters(total_steps=total_steps, clock=clock, step=first_step, samples=samples)
        self._values: dict[str, torch.Tensor | float] = {}
        self._due = True  # the first step shows at once that training runs
        self._asked = False
        self._sent: tuple[int, int, int, list[str]] | None = None

    def note(self, values: dict[str, torch.Tensor | float], *, now: bool) -> None:
        """Values of this step; a later one of the same name wins."""
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.numel() != 1:
                raise RecipeError(
                    f"run.log got {name} of shape {tuple(value.shape)}, expected one element",
                    fix=f"log {name}.mean()",
                )
        self._values |= values
        self._due = self._due or now
        if len(self._values) > SLOTS:
            raise RecipeError(
                f"run.log got {len(self._values)} names in one step, at most {SLOTS} fit",
                fix="log fewer of them",
            )

    @property
    def is_due(self) -> bool:
        """This step is a logged one, on every rank alike."""
        return self._due

    def forget(self) -> None:
        """The pulse under way is lost, and the line that waited for it; the next step is a logged one."""
        self._sent, self._asked, self._due = None, False, True

    def begin(self, step: int) -> None:
        """`step` is about to be trained; the last one is always a logged one."""
        self._values = {n: v for n, v in self._values.items() if not isinstance(v, torch.Tensor)}
        on_flag = self._every is not None and step % self._every == 0
        self._due = self._due or on_flag or step == self._total

    def wants_line(self) -> bool:
        """Rank 0's clock says that a line is due; asked for once until it is printed."""
        if self._rank != 0 or self._every is not None or self._asked:
            return False
        self._asked = self._meters.seconds_since_line() >= _LINE_INTERVAL_S
        return self._asked

    def end(self, step: int, *, samples: int, epoch: int) -> tuple[float, ...]:
        """What the pulse shall carry for `step`: nothing, or its values. The only wait for the device."""
        if not self._due:
            return ()
        numbers = tuple(float(value) for value in self._values.values())
        self._sent = (step, samples, epoch, list(self._values))
        self._values, self._due = {}, False
        return numbers

    def hear(self, values: tuple[float, ...], *, log: bool) -> None:
        """The pulse came back: print the line that waited for it; `log` makes the next step a logged one."""
        self._due = self._due or log
        if self._sent is None:
            return
        step, samples, epoch, names = self._sent
        self._sent = None
        if self._rank == 0:
            found = dict(zip(names, values, strict=False))
            self._print(self._meters.reading(step=step, samples=samples, epoch=epoch, metrics=found))
            self._asked = False

    def _print(self, reading: meters.Reading) -> None:
        channel.send(meters.finite(reading))
        if self._book:
            self._book.write(meters.finite(reading))
        print(meters.as_json(reading) if self._json else meters.as_text(reading), flush=True)
