"""Memory that a rank frees is kept for its next step."""

from collections.abc import Callable

import pytest

from tests.process.dtj.conftest import PROGRAMS, Finished

Finish = Callable[..., Finished]


def test_freed_memory_is_kept_for_the_next_step(finish: Finish) -> None:
    assert finish("run", PROGRAMS / "frees.py").out == "[rank 0] on the heap: True kept: True\n"


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_user_s_own_settings_of_the_c_library_are_kept(finish: Finish, name: str) -> None:
    assert "on the heap: False" in finish("run", PROGRAMS / "frees.py", **{name: "0"}).out
