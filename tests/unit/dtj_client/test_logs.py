"""Lines of several replicas as one log."""

from dtj_client.logs import Line, merge, of_ranks, parse


def test_lines_of_all_replicas_are_in_the_order_of_time() -> None:
    zero = parse(0, ["2026-01-01T00:00:01.5Z first", "2026-01-01T00:00:03.000000001Z third\n"])
    one = parse(1, ["2026-01-01T00:00:02Z second word", "2026-01-01T00:00:09Z "])
    assert [str(line) for line in merge([zero, one])] == ["0| first", "1| second word", "0| third", "1| "]


def test_lines_of_some_ranks() -> None:
    texts = ["[rank 1] a", "dtj: generation 2", "[rank 10] b", '{"rank": 1, "message": "c"}', "x [rank 1] d"]
    lines = [Line("", 0, text) for text in texts]
    assert [line.text for line in of_ranks(lines, {1})] == [texts[0], texts[3]]
