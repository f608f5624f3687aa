"""A new clone starts with the cache that an earlier one left."""

from pathlib import Path

import pytest

from tests.support.type_check import check


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "environment" / "kept"


def mypy(cache: Path, *, status: int = 0) -> int:
    """Write a cache, as mypy does."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "log").open("a") as log:
        log.write("checked\n")
    return status


def test_second_clone_starts_with_the_cache_of_the_first(tmp_path: Path, kept: Path) -> None:
    first, second = tmp_path / "first" / "cache", tmp_path / "second" / "cache"
    kept.parent.mkdir()
    second.parent.mkdir()
    assert check(lambda: mypy(first), cache=first, kept=kept) == 0
    assert check(lambda: mypy(second), cache=second, kept=kept) == 0
    assert (second / "log").read_text() == "checked\n" * 2
    assert (kept / "log").read_text() == "checked\n"
    assert [path.name for path in kept.parent.iterdir()] == ["kept"]  # no half copies


def test_clone_with_a_cache_of_its_own_keeps_it(tmp_path: Path, kept: Path) -> None:
    cache = tmp_path / "cache"
    mypy(kept)
    mypy(cache)
    check(lambda: mypy(cache), cache=cache, kept=kept)
    assert (cache / "log").read_text() == "checked\n" * 2


def test_cache_of_a_check_that_failed_is_not_kept(tmp_path: Path, kept: Path) -> None:
    """It may be incomplete."""
    cache = tmp_path / "cache"
    assert check(lambda: mypy(cache, status=2), cache=cache, kept=kept) == 2
    assert not kept.exists()
