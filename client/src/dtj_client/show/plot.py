"""Loss and rate of a job over time, with its failures, as a picture; read from the log and the status."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Json
from dtj_client.show.readings import Reading


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
        "loss": [(_moment(each), each.loss) for each in found if each.loss is not None],
        "samples/s": [(_moment(each), each.rate) for each in found if each.rate is not None],
        "step": [(_moment(each), each.step) for each in found],
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


def _moment(reading: Reading) -> datetime:
    return datetime.fromisoformat(reading.at)


def _pyplot() -> Any:
    try:
        import matplotlib as mpl  # noqa: PLC0415 - optional, and a second of imports

        mpl.use("Agg")
        from matplotlib import pyplot  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ClientError("matplotlib is not installed", "pip install matplotlib") from error
    return pyplot
