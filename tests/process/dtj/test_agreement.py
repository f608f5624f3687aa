"""What the ranks send to each other in a step."""

import json
from collections.abc import Callable
from pathlib import Path

from dtj.agreement import SLOTS
from tests.process.dtj.conftest import PROGRAMS, Finished
from tests.process.dtj.programs.counts import FIRST, LAYERS, STEPS, WIDTH


def test_step_sends_its_gradients_once_and_at_most_one_message(
    finish: Callable[..., Finished], tmp_path: Path
) -> None:
    """One message has all agreements and logged values; clipping sends nothing."""
    ended = finish("run", "--nproc", 2, PROGRAMS / "counts.py", OUT=tmp_path)
    assert ended.code == 0, ended.err
    sent = json.loads((tmp_path / "sent.json").read_text())
    assert {name for name, _ in sent} == {"gloo:all_reduce"}
    gradients = [size for _, size in sent if size == LAYERS * (WIDTH + 1) * WIDTH]
    flags = [size for _, size in sent if size == 6 + 2 * SLOTS]
    assert len(gradients) == STEPS - FIRST
    assert 0 < len(flags) <= STEPS - FIRST
    assert len(gradients) + len(flags) == len(sent)
