from pathlib import Path

from tests.support.layout import stray_tests, unknown_targets


def test_test_outside_the_suites_is_reported(tmp_path: Path):
    for name in ("unit/a/test_a.py", "support/test_b.py", "test_c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = list(stray_tests(tmp_path))
    assert [line.split(": ")[0] for line in found] == [
        f"{tmp_path}/support/test_b.py:1",
        f"{tmp_path}/test_c.py:1",
    ]


def test_unknown_make_target_on_a_page_is_reported(tmp_path: Path):
    page, makefile = tmp_path / "page.md", tmp_path / "Makefile"
    makefile.write_text("lint: ## check\n")
    page.write_text(
        "Run `make lint`, make sure.\n\nOr `make nope`.\n\n```\nmake lint X=1 # all\nmake gone\n```\n"
    )
    found = list(unknown_targets([page], makefile))
    assert [line.split("; ")[0] for line in found] == [
        f"{page}:3: the Makefile has no target nope",
        f"{page}:7: the Makefile has no target gone",
    ]
