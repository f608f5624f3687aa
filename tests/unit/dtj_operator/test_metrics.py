"""Where counters begin, and the memory that the operator may use, from what the kernel says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prometheus_client import Counter

from dtj_operator.metrics import EVENTS_DROPPED, POLLS, RECONCILES, memory_limit

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


@pytest.mark.parametrize(("counter", "number"), [(RECONCILES, 3), (POLLS, 2), (EVENTS_DROPPED, 2)], ids=str)
def test_counter_with_fixed_labels_has_all_its_series_at_once(counter: Counter, number: int) -> None:
    """Prometheus' increase() does not see the first value of a series."""
    (family,) = counter.collect()
    assert len(family.samples) == number
