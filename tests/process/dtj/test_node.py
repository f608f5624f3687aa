"""Preparation once per node."""

from collections.abc import Callable
from pathlib import Path

from tests.process.dtj.conftest import Finished

SCRIPT = """
import os
import signal
import sys
from pathlib import Path
import dtj

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a restart must not interrupt the code inside
out = Path(os.environ["OUT"])
with dtj.first_on_node():
    (out / f"inside-{os.getpid()}").touch()
    assert len(list(out.glob("inside-*"))) == 1, "two at a time"
    if not (out / "ready").exists():
        with (out / "prepared").open("a") as log:
            log.write("once\\n")
        if os.environ.get("DIE") and not (out / "died").exists():
            (out / "died").touch()
            (out / f"inside-{os.getpid()}").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        (out / "ready").touch()
    (out / f"inside-{os.getpid()}").unlink()
"""


def test_one_rank_prepares_and_the_others_find_it_done(
    finish: Callable[..., Finished], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = finish("run", "--nproc", 4, script, OUT=tmp_path, TMPDIR=tmp_path)
    assert ended.code == 0, ended.err
    assert (tmp_path / "prepared").read_text() == "once\n"


def test_if_the_first_rank_dies_another_one_prepares(finish: Callable[..., Finished], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = finish("run", "--nproc", 2, "--max-restarts", 1, script, OUT=tmp_path, TMPDIR=tmp_path, DIE=1)
    assert ended.code == 0, ended.err
    assert (tmp_path / "prepared").read_text() == "once\nonce\n"
