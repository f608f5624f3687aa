"""Lines of several replicas as one log."""

from dtj_client.logs import merge, parse


def test_lines_of_all_replicas_are_in_the_order_of_time() -> None:
    zero = parse(0, ["2026-01-01T00:00:01.5Z first", "2026-01-01T00:00:03.000000001Z third\n"])
    one = parse(1, ["2026-01-01T00:00:02Z second word", "2026-01-01T00:00:09Z "])
    assert [str(line) for line in merge([zero, one])] == ["0| first", "1| second word", "0| third", "1| "]
