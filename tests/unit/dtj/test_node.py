"""The lock of `first_on_node` in a folder to which other users may write."""

import os
import tempfile
from pathlib import Path

import pytest

import dtj


def test_link_in_place_of_the_lock_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with dtj.first_on_node():
        lock = tmp_path / f"dtj-{os.getuid()}.lock"
        assert lock.stat().st_mode & 0o077 == 0
    lock.unlink()
    mine = tmp_path / "mine"
    mine.write_text("kept")
    lock.symlink_to(mine)
    with pytest.raises(OSError, match=str(lock)), dtj.first_on_node():
        pass
    assert mine.read_text() == "kept"
