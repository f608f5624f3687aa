"""Measures how long a rank works on a step, without the time that it waits for the other ranks.

In lock step all ranks have the same step time; a slow rank is the one that waits less. The wait is between
the rank's own last gradient, when it joins the averaging, and the optimizer step, when all have arrived:

    |-- forward, backward of this rank --|-- waits for the others --|-- optimizer --|-- next batch ...
                                  its last gradient            averaged

Two hooks and a few microseconds per step, no wait for a device. Only on CPUs, where the hook of a gradient
runs after it was computed; and only if each rank has the whole model, otherwise a rank waits in many places.
"""

import time
from typing import Any

from dtj.telemetry.heartbeat import SharedHeartbeat


class BusyTime:
    """Observes one optimizer at a time, and records the busy time in the heartbeat."""

    def __init__(self, heartbeat: SharedHeartbeat) -> None:
        self._heartbeat = heartbeat
        self._arrived: float | None = None  # time of this rank's last gradient in this step
        self._waited = 0.0
        self._left: float | None = None  # end of the previous step
        self._detours = heartbeat.detours
        self._hook: Any = None

    def watch(self, optimizer: Any) -> None:
        """Observe this optimizer from now on: hook its first parameter, whose gradient usually comes last."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._arrived = self._left = None
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        first = next((p for p in parameters if p.requires_grad and p.is_leaf), None)
        if first is not None and first.device.type == "cpu":
            self._hook = first.register_post_accumulate_grad_hook(self._arrive)

    def before_step(self) -> None:
        """Called before the optimizer step: the gradients are averaged."""
        if self._arrived is not None:
            self._waited = time.perf_counter() - self._arrived

    def after_step(self) -> None:
        """Called after the optimizer step. A step with a save, an evaluation or a pause is not measured."""
        now = time.perf_counter()
        is_plain = self._arrived is not None and self._detours == self._heartbeat.detours
        if is_plain and self._left is not None and self._heartbeat.is_compared:
            self._heartbeat.worked(now - self._left - self._waited)
        self._left, self._arrived, self._detours = now, None, self._heartbeat.detours

    def _arrive(self, _parameter: Any) -> None:
        self._arrived = time.perf_counter()
