"""What the message of a failure says of a rank's output."""

from dtj.agent.rank.last_words import last_words

CRASH = """starts
Fatal Python error: Aborted

Thread 0x00007f10 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f20 (most recent call first):
  File "/app/net.py", line 7 in forward
  File "/app/train.py", line 3 in <module>

Extension modules: numpy.random, torch._C (total: 2)
"""


def test_last_lines() -> None:
    assert last_words([]) == ""
    assert last_words(str(number).encode() for number in range(20)).split() == [*map(str, range(12, 20))]
    assert last_words([b"a", b"", b"\xff"]) == "a\n\ufffd"


def test_crash_shows_where_the_program_was() -> None:
    assert last_words(CRASH.encode().split(b"\n")).splitlines() == [
        "Fatal Python error: Aborted",
        "Current thread 0x00007f20 (most recent call first):",
        '  File "/app/net.py", line 7 in forward',
        '  File "/app/train.py", line 3 in <module>',
    ]
