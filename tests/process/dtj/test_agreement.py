"""What the ranks send to each other in a step."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.process.dtj.conftest import PROGRAMS, Finished
from tests.process.dtj.programs.counts import FIRST, LAYERS, STEPS, WIDTH

# Elements of what is sent: all gradients, a message of agreement.py, the length of a line.
SIZES = GRADIENTS, MESSAGE, _ = LAYERS * (WIDTH + 1) * WIDTH, 7, 1


def test_step_sends_its_gradients_once_and_rarely_anything_else(
    finish: Callable[..., Finished], tmp_path: Path
) -> None:
    """A message has all agreements; a logged step sends the length of its line, and the line.

    Every 10th step is logged: by default about one a second is, of a busy machine's long steps nearly all.
    """
    ended = finish("run", "--nproc", 2, "--log-every", 10, PROGRAMS / "counts.py", OUT=tmp_path)
    assert ended.code == 0, ended.err
    sent = json.loads((tmp_path / "sent.json").read_text())
    kinds = Counter((name, size if size in SIZES else "line") for name, size in sent)
    assert kinds.pop(("gloo:all_reduce", GRADIENTS)) == STEPS - FIRST
    assert kinds.pop(("gloo:all_reduce", MESSAGE), 0) <= STEPS - FIRST  # none, if 20 steps take 0.2 s or less
    assert kinds == {("gloo:all_reduce", 1): 2, ("gloo:gather", "line"): 2}
