"""Tokens a second of GPT-2 124M on one GPU: Run's verbs beside nanoGPT's own loop, in turns.

    NANOGPT=FOLDER python -m tests.bench gpu

FOLDER is a copy of nanoGPT, whose train.py runs unchanged. Without a GPU a tiny model shows that all runs.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from dtj.models.gpt import GPT2_124M, Shape
from dtj.recipes.text import split
from tests.bench import ranks, report

ON_GPU = torch.cuda.is_available()
SHAPE = GPT2_124M if ON_GPU else Shape(vocabulary=256, context=64, layers=2, heads=2, width=64)
MICRO_BATCH, ACCUMULATE = (12, 8) if ON_GPU else (2, 2)
TOKENS = MICRO_BATCH * ACCUMULATE * SHAPE.context  # of a step
WARM_UP, STEPS, TURNS = 10, 30, 3
# Of dense products of bfloat16 numbers, TFLOP/s, by NVIDIA's data sheets.
PEAKS = {"H100": 989.0, "H200": 989.0, "A100": 312.0}
# Name in the table -> model of programs/gpu.py; None: nanoGPT's train.py.
LOOPS = {
    "nanoGPT: its loop, its model": None,
    "`dtj run --compile`, nanoGPT's model": "theirs",
    "`dtj run --compile`, `dtj.recipes.text:gpt2`": "ours",
}


def main() -> None:
    """Measure and write the section of the page."""
    with tempfile.TemporaryDirectory() as folder:
        here = prepared(Path(folder))
        found: dict[str, list[float]] = {name: [] for name in LOOPS}
        for turn in range(TURNS + 1):
            for name, model in LOOPS.items():
                took = seconds(model, here)
                print(f"turn {turn}: {name}: {STEPS * TOKENS / took:,.0f} tokens/s", file=sys.stderr)
                if turn:  # the first one compiles, and fills the caches of compiled kernels
                    found[name].append(took)
    report.write("gpu", report.table(["loop", "tokens/s", "MFU", "beside nanoGPT"], rows(found)))


def prepared(folder: Path) -> Path:
    """nanoGPT's files, and the text that both loops train on."""
    for name in ("train.py", "model.py", "configurator.py"):
        shutil.copy(Path(os.environ["NANOGPT"]) / name, folder)
    data = folder / "data" / "bytes"
    data.mkdir(parents=True)
    text, _ = split(context=SHAPE.context, limit=8_000_000)
    whole = np.concatenate([text[index][0].numpy() for index in range(len(text))])
    for part in ("train.bin", "val.bin"):
        whole.astype(np.uint16).tofile(data / part)
    return folder


def seconds(model: str | None, folder: Path) -> float:
    """Seconds of the steps after warm-up."""
    if model is None:
        return seconds_of_nanogpt(folder)
    program = ranks.PROGRAMS.resolve() / "gpu.py"
    return float(ranks.numbers([*ranks.DTJ, program, model], folder=folder)["seconds"])


def seconds_of_nanogpt(folder: Path) -> float:
    settings = {
        "dataset": "bytes",
        "batch_size": MICRO_BATCH,
        "gradient_accumulation_steps": ACCUMULATE,
        "max_iters": WARM_UP + STEPS,
        "eval_iters": 1,
        "eval_interval": 10**6,
        "device": "cuda" if ON_GPU else "cpu",
        "compile": ON_GPU,
        "block_size": SHAPE.context,
        "n_layer": SHAPE.layers,
        "n_head": SHAPE.heads,
        "n_embd": SHAPE.width,
    }
    flags = [f"--{name}={value}" for name, value in settings.items()]
    ended = subprocess.run(
        [sys.executable, "train.py", *flags],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(ended.stderr[-2000:])
    took = [
        float(found) for found in re.findall(r"^iter \d+: .* time ([\d.]+)ms", ended.stdout, re.MULTILINE)
    ]
    return sum(took[WARM_UP : WARM_UP + STEPS]) / 1000


def rows(found: dict[str, list[float]]) -> list[list[object]]:
    """A row for each loop: medians over the turns, the ratio turn by turn."""
    first, *_ = found.values()
    peak = next((p for name, p in PEAKS.items() if ON_GPU and name in torch.cuda.get_device_name()), None)
    made = list[list[object]]()
    for name, took in found.items():
        rate = STEPS * TOKENS / statistics.median(took)
        ratio = statistics.median(theirs / our for theirs, our in zip(first, took, strict=True))
        mfu = f"{rate * operations() / (1e12 * peak):.1%}" if peak else "unknown"
        made.append([name, f"{rate:,.0f}", mfu, f"{ratio:.3f}"])
    return made


def operations() -> int:
    """Floating-point operations for a token, forward and backward; Chowdhery et al. (2022), appendix B."""
    weights = 12 * SHAPE.layers * SHAPE.width**2 + SHAPE.vocabulary * SHAPE.width
    return 6 * weights + 12 * SHAPE.layers * SHAPE.width * SHAPE.context
