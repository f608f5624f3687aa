"""The table of recoveries."""

from tests.bench.recovery import A_JOB, Trial, text


def test_table_has_the_stages_that_occurred_and_says_what_never_healed():
    healed = [Trial(number=n, spent={"detect": 0.1 * n, "all": float(n)}) for n in (1, 2, A_JOB)]
    found = text([*healed, Trial(number=3, spent={})])
    assert "| seconds | faults | detect | **all** |" in found
    assert "| p50 | 3 | 0.20 | 2.00 |" in found
    assert "fifth of their job | 1 | 0.50 | 5.00 |" in found
    assert found.endswith("1 of 4 never trained again.")
    assert "never" not in text(healed)
