"""How long a rank works on its steps, without the time in which it waits for the others.

In lock step all ranks take equally long; who is slow shows by waiting less. The wait lies between the
rank's last own gradient, when its part of the averaging begins, and the optimizer's step, when all are there:

    |-- forward, backward of this rank --|-- waits for the others --|-- optimizer --|-- next batch ...
                                  its last gradient            averaged

Two hooks and a few microseconds a step, no wait for a device. Only on CPUs, where a gradient that is there is
also computed; and only where each rank has the whole model, otherwise the waits lie everywhere.
"""

import time
from typing import Any

from dtj.telemetry.heartbeat import SharedHeartbeat


class BusyTime:
    """Follows the first optimizer that makes a step, and writes what it finds on the heartbeat."""

    def __init__(self, heartbeat: SharedHeartbeat) -> None:
        self._heartbeat = heartbeat
        self._arrived: float | None = None  # the last own gradient of this step
        self._waited = 0.0
        self._left: float | None = None  # the end of the step before
        self._detours = heartbeat.detours
        self._is_watching = False

    def before_step(self, optimizer: Any) -> None:
        """Gradients are averaged, the optimizer is about to make its step."""
        if not self._is_watching:
            self._watch(optimizer)
        if self._arrived is not None:
            self._waited = time.perf_counter() - self._arrived

    def after_step(self) -> None:
        """The optimizer made its step. One with a save, an evaluation or a pause before it does not count."""
        now = time.perf_counter()
        is_plain = self._arrived is not None and self._detours == self._heartbeat.detours
        if is_plain and self._left is not None and self._heartbeat.is_compared:
            self._heartbeat.worked(now - self._left - self._waited)
        self._left, self._arrived, self._detours = now, None, self._heartbeat.detours

    def _watch(self, optimizer: Any) -> None:
        """The gradient of the first parameter usually comes last."""
        self._is_watching = True
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        first = next((p for p in parameters if p.requires_grad and p.is_leaf), None)
        if first is not None and first.device.type == "cpu":
            first.register_post_accumulate_grad_hook(self._arrive)

    def _arrive(self, _parameter: Any) -> None:
        self._arrived = time.perf_counter()
