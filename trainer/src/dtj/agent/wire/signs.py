"""Signs of life of a rank, as its pod's agent tells them to the coordinator. Pure."""

from typing import NamedTuple


class Heartbeat(NamedTuple):
    """A rank is working.

    pause_s     its present work may take this long; 0 for any time, None if it declared nothing
    busy_time   number of steps whose work was measured, and seconds of work in them
    at          when the step was completed, by time.monotonic() of the rank's machine
    is_counted  its optimizer's steps were counted, since the program reports none
    """

    generation: int
    step: int | None
    pause_s: float | None
    busy_time: tuple[int, float] = (0, 0.0)
    at: float = 0.0
    is_counted: bool = False


class Activity(NamedTuple):
    """A rank without a completed step was active, or its process was stopped or continued."""

    generation: int
    is_stopped: bool
