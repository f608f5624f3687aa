"""The memory that the operator may use, from what the kernel says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dtj_operator.metrics import memory_limit

ALL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("written", "expected"),
    [("536870912\n", 536870912), ("max\n", ALL), ("9223372036854771712\n", ALL), (None, ALL)],
    ids=["a limit", "none", "none in the first version of cgroups", "no such file"],
)
def test_limit_is_that_of_the_container_or_all_memory(
    tmp_path: Path, written: str | None, expected: int
) -> None:
    file = tmp_path / "memory.max"
    if written is not None:
        file.write_text(written)

    assert memory_limit([tmp_path / "absent", file]) == expected
