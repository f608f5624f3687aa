"""Plots a .jsonl file of --metrics: loss and other values, rate, and the steps of restarts."""

from importlib import import_module
from pathlib import Path
from typing import Any

from dtj.errors import RecipeError, package
from dtj.telemetry import metric_files


def plot(source: Path, target: Path) -> int:
    """Plot the steps of `source`; return their number. If a step was trained twice, its last values count."""
    lines = metric_files.read(source)
    steps = {line["step"]: line for line in lines if "event" not in line}
    starts = [line["step"] for line in lines if line.get("event") == "start"][1:]
    if not steps:
        raise RecipeError(f"{source} has no logged steps yet", fix="wait until the run has logged a step")
    curves = curves_of([steps[step] for step in sorted(steps)])
    figure, panels = _pyplot().subplots(
        len(curves), sharex=True, squeeze=False, figsize=(8, 2.2 * len(curves)), layout="constrained"
    )
    for panel, (name, points) in zip(panels[:, 0], curves.items(), strict=True):
        panel.plot(*zip(*points, strict=True))
        panel.set_ylabel(name)
        for start in starts:
            panel.axvline(start, color="tab:red", linestyle=":", linewidth=1)
    panels[0, 0].set_title(f"{source.stem}, started {len(starts) + 1}x" if starts else source.stem)
    panels[-1, 0].set_xlabel("step")
    try:
        figure.savefig(target, dpi=120)
    except ValueError as error:  # unknown suffix
        raise RecipeError(
            f"{target}: {error}", fix="choose a file name that ends in .png, .svg or .pdf"
        ) from error
    return len(steps)


def curves_of(lines: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Name -> [(step, value), ...] of the lines that have a value; in the order of the panels."""
    names = dict.fromkeys(name for line in lines for name in line["metrics"])
    values = {
        "loss": [line["loss"] for line in lines],
        **{name: [line["metrics"].get(name) for line in lines] for name in names},
        "samples/s": [line["samplesPerSecond"] for line in lines],
    }
    steps = [line["step"] for line in lines]
    found = {
        name: [(step, value) for step, value in zip(steps, column, strict=True) if value is not None]
        for name, column in values.items()
    }
    return {name: points for name, points in found.items() if points}


def _pyplot() -> Any:
    package("matplotlib", "matplotlib is not installed", fix="pip install matplotlib").use("Agg")
    return import_module("matplotlib.pyplot")
