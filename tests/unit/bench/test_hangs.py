"""The benchmark of real hangs: what its table counts."""

from tests.bench.hangs import Hang, text


def test_hang_that_is_found_late_or_blamed_on_others_is_counted_as_made():
    found = text(
        [
            Hang(way="asleep", rank=1, found_s=30.0, named=(1,), healed=True),
            Hang(way="asleep", rank=1, found_s=50.0, named=(0, 1), healed=True),
            Hang(way="asleep", rank=2),
        ]
    )
    assert found.splitlines()[2:] == ["| sleeps before a collective | 60 | 3 | 1 | 40.0 | 49.8 | 50.0 | 2 |"]


def test_hang_that_is_never_found_has_no_time():
    assert "| SIGSTOP | 60 | 1 | 0 | never | never | never | 0 |" in text([Hang(way="stopped", rank=0)])
