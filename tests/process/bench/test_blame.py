"""Runs one crash of each kind from the blame benchmark, with real ranks."""

import json
from pathlib import Path

import pytest

from tests.bench.blame import judge
from tests.bench.blame_plan import PLACES, draw, is_right
from tests.support.commands import commands, warm


@pytest.mark.parametrize("place", PLACES)
def test_right_rank_is_blamed(tmp_path: Path, place: str) -> None:
    """If several ranks die at once, any of them is right: on a busy machine the order is seen late."""
    crash = next(crash for crash in draw(200, 3) if crash.place == place)
    with commands(warm(), tmp_path) as start:
        verdict = judge(start, tmp_path, crash)
    died = [json.loads(file.read_text()) for file in tmp_path.glob("truth-*[0-9]")]
    truths = [note for note in died if note["life"] == crash.deaths[-1].life]
    assert any(is_right(truth, verdict.messages) == (True, True) for truth in truths), verdict
