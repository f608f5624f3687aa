"""CPU time by program: of the benchmark's own processes, and of all others."""

from tests.bench.cpu import TICKS_PER_S, Used, busy_s, used

STAT = "cpu  100 20 30 4000 500 6 7 8 90 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n"


def test_idle_processors_and_guests_are_not_counted_twice():
    assert busy_s(STAT) == (100 + 20 + 30 + 6 + 7 + 8) / TICKS_PER_S


def test_what_others_used_is_what_remains():
    before = Used(own={"benchmark": 1.0}, all_s=10.0)
    after = Used(own={"benchmark": 1.5, "etcd": 2.0}, all_s=14.0)
    assert after - before == Used(own={"benchmark": 0.5, "etcd": 2.0}, all_s=4.0)
    assert (after - before).others_s == 1.5


def test_this_process_and_the_whole_machine_are_counted():
    before = spent = used()
    while not ((spent := used() - before).own["benchmark"] and spent.all_s):  # each has its own clock tick
        sum(range(100_000))
    assert min(spent.own["benchmark"], spent.all_s) > 0
