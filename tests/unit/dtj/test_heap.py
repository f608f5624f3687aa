"""What a rank frees, it has for its next step."""

import re
from collections.abc import Callable

import pytest

from tests.unit.dtj.conftest import PROGRAMS, Finished

Finish = Callable[..., Finished]


def page_faults(finish: Finish, **env: object) -> int:
    found = re.search(r"faults (\d+)", finish("run", PROGRAMS / "frees.py", **env).out)
    assert found
    return int(found[1])


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_freed_memory_is_kept_for_the_next_step_unless_the_user_decided(finish: Finish, name: str) -> None:
    assert page_faults(finish) < 0.05 * page_faults(finish, **{name: "0"})
