"""Loss and rate of a job over time, with its failures, as a picture; read from the log and the status."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dtj_client.errors import ClientError
from dtj_client.kubectl import Json
from dtj_client.logs import Line

_STEP = re.compile(r"\[rank \d+\] step (\d+)/")
_LOSS = re.compile(r"  loss (\S+)")
_RATE = re.compile(r"  (\S+) samples/s")


@dataclass(frozen=True)
class Reading:
    """What a line of the log says about a step.

    rate  samples per second of the whole job
    """

    at: datetime
    step: int
    loss: float | None
    rate: float | None


def readings(lines: Iterable[Line]) -> Iterator[Reading]:
    """Yield the lines of a log that report a step, as text or as JSON."""
    for line in lines:
        found = _from_json(line.text) if line.text.startswith("{") else _from_text(line.text)
        if found:
            yield Reading(datetime.fromisoformat(line.at), *found)


def draw(job: Json, found: Sequence[Reading], target: Path) -> None:
    """Write the picture; the suffix of the file chooses its format.

    Raises ClientError if there is nothing to draw, or the file cannot be written.
    """
    name = job["metadata"]["name"]
    if not found:
        raise ClientError(
            f"no log of {name} has a line about a step", "plot needs the log lines of dtj train or dtj.Run"
        )
    every: dict[str, list[tuple[datetime, float]]] = {
        "loss": [(each.at, each.loss) for each in found if each.loss is not None],
        "samples/s": [(each.at, each.rate) for each in found if each.rate is not None],
        "step": [(each.at, each.step) for each in found],
    }
    curves = {label: points for label, points in every.items() if points}
    pyplot = _pyplot()
    figure, panels = pyplot.subplots(
        len(curves), sharex=True, squeeze=False, figsize=(8, 2.2 * len(curves)), layout="constrained"
    )
    for panel, (label, points) in zip(panels[:, 0], curves.items(), strict=True):
        panel.plot([at for at, _ in points], [value for _, value in points])
        panel.set_ylabel(label)
        for at, reason in failures(job):
            panel.axvline(at, color="tab:red", linestyle=":", linewidth=1)
            where = {"xycoords": ("data", "axes fraction"), "xytext": (3, -9), "textcoords": "offset points"}
            panel.annotate(reason, (at, 1), fontsize=7, color="tab:red", parse_math=False, **where)
    panels[-1, 0].set_xlabel("time (UTC)")
    phase = (job.get("status") or {}).get("phase", "")
    panels[0, 0].set_title(f"{name} {phase}".rstrip(), parse_math=False)
    try:
        figure.savefig(target, dpi=120)
    except (OSError, ValueError) as error:  # no such folder, or no such format
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ClientError(f"cannot write {target}: {why}", "name a file such as loss.png") from error
    finally:
        pyplot.close(figure)


def failures(job: Json) -> list[tuple[datetime, str]]:
    """When the job failed, and its reasons: the last five, which the status keeps."""
    found = (job.get("status") or {}).get("failures") or ()
    return [
        (datetime.fromisoformat(each["at"]), str(each.get("reason", ""))) for each in found if each.get("at")
    ]


def _from_text(text: str) -> tuple[int, float | None, float | None] | None:
    step = _STEP.match(text)
    return step and (int(step[1]), _number(_LOSS.search(text)), _number(_RATE.search(text)))


def _from_json(text: str) -> tuple[int, float | None, float | None] | None:
    try:
        said = json.loads(text)
    except ValueError:
        return None
    if not isinstance(said, dict) or type(said.get("step")) is not int or "samplesPerSecond" not in said:
        return None
    return said["step"], _float(said.get("loss")), _float(said["samplesPerSecond"])


def _number(found: re.Match[str] | None) -> float | None:
    try:
        return float(found[1]) if found else None
    except ValueError:
        return None


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _pyplot() -> Any:
    try:
        import matplotlib as mpl  # noqa: PLC0415 - optional, and a second of imports

        mpl.use("Agg")
        from matplotlib import pyplot  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ClientError("matplotlib is not installed", "pip install matplotlib") from error
    return pyplot
