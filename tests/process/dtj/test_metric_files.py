"""Files of logged steps, and their plot."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from dtj.models.gpt import GPT
from dtj.telemetry import metric_files
from tests.process.dtj.conftest import PROGRAMS, SHAPE, Finished

Finish = Callable[..., Finished]


def test_every_logged_step_and_every_start_is_written_and_plotted(finish: Finish, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    for steps in (4, 7):
        ended = finish(
            *("run", "--nproc", 2, "--log-every", 1, "--metrics", file),
            *("--checkpoint", tmp_path / "run", PROGRAMS / "gpt.py"),
            OUT=tmp_path,
            STEPS=steps,
        )
        assert ended.code == 0, ended.err
    lines = metric_files.read(file)
    assert [(line.get("event"), line["step"]) for line in lines] == [
        ("start", 0),
        *((None, step) for step in (1, 2, 3, 4)),
        ("start", 4),
        *((None, step) for step in (5, 6, 7)),
    ]
    losses = [float(x) for x in (tmp_path / "losses.txt").read_text().split()]
    assert [line["loss"] for line in lines[-3:]] == pytest.approx(losses, rel=1e-6)

    ended = finish("plot", file)
    picture = tmp_path / "run.png"
    assert (ended.code, ended.out) == (0, f"{picture}: 7 logged steps\n"), ended.err
    assert picture.read_bytes().startswith(b"\x89PNG")


def flops_per_token(model: GPT) -> float:
    """Floating point operations of forward and backward.

    6 per parameter of a matrix product, and 12 x layers x width x context for attention
    (Chowdhery et al., "PaLM", 2022, appendix B).
    """
    products = sum(p.numel() for p in model.parameters()) - model.position.weight.numel()
    return 6.0 * products + 12.0 * model.shape.layers * model.shape.width * model.shape.context


def test_all_metric_targets_and_mfu_of_one_run(finish: Finish, tmp_path: Path) -> None:
    """Operations are those of rank 0, half of all; counting them does not change the result."""
    targets = (tmp_path / "run.jsonl", tmp_path / "run.csv", f"tensorboard:{tmp_path / 'events'}")
    ended = finish(
        *("run", "--nproc", 2, "--log-every", 1, "--peak-tflops", 0.001),
        *(word for target in targets for word in ("--metrics", target)),
        PROGRAMS / "gpt.py",
        OUT=tmp_path,
        STEPS=4,
    )
    assert ended.code == 0, ended.err
    lines = metric_files.read(tmp_path / "run.jsonl")[1:]
    rows = list(csv.DictReader((tmp_path / "run.csv").read_text().splitlines()))
    assert [float(row["loss"]) for row in rows] == [line["loss"] for line in lines]
    assert list((tmp_path / "events").glob("events.out.tfevents.*"))
    last = lines[-1]
    assert 0 <= last["dataWait"] <= 1
    assert 0 < last["stepSecondsP50"] <= last["stepSecondsP99"]
    assert last["memoryBytes"] > 1e6
    expected = flops_per_token(GPT(SHAPE)) * SHAPE.context / 2
    found = last["mfu"] * 1e9 / last["samplesPerSecond"]
    assert found == pytest.approx(expected, rel=0.1), "operations of one rank for one sample"
