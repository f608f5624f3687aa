"""The settings of the link checker in pyproject.toml find a broken link."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_broken_link_on_a_page_is_reported(tmp_path: Path):
    (tmp_path / "page.md").write_text("[a](page.md#part)\n[b](gone.md)\n[c](#nope)\n\n## Part\n")
    rumdl = str(Path(sys.executable).with_name("rumdl"))
    config = str(ROOT / "pyproject.toml")
    checked = subprocess.run(
        [rumdl, "check", "--quiet", "--no-cache", "--config", config, "."],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 1
    assert [line.split(" ")[0] for line in checked.stdout.splitlines() if "[MD" in line] == [
        "page.md:2:5:",
        "page.md:3:1:",
    ]
