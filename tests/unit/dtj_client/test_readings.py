"""What log lines say about steps."""

import pytest

from dtj.telemetry.metrics import as_json, as_text
from dtj_client.show.logs import Line
from dtj_client.show.readings import Reading, number, of_line

AT = "2026-01-01T12:00:00Z"


def test_lines_of_the_trainer_are_read_in_both_formats() -> None:
    said = {"step": 23, "totalSteps": 69, "epoch": 0, "loss": 0.25, "metrics": {"accuracy": 0.87}}
    said |= {"samplesPerSecond": 2344.0, "tokensPerSecond": None, "mfu": None, "dataWait": 0.1}
    said |= {"etaSeconds": 8.0}
    for text in (f"[rank 0] {as_text(said)}", as_json({"rank": 0, **said})):
        assert of_line(Line(AT, 0, text)) == Reading(AT, 23, 0.25, 2344.0)


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        (
            "[rank 0] step 120/2000  epoch 3  loss 0.2130  812 samples/s  eta 0:00:31",
            Reading(AT, 120, 0.213, 812),
        ),
        ("step 5/9  epoch 0  loss nan", Reading(AT, 5, None, None)),
        (
            '{"rank": 0, "step": 7, "loss": 1.5, "samplesPerSecond": 9.0, "metrics": {}}',
            Reading(AT, 7, 1.5, 9),
        ),
        ("[rank 1] step 120/2000  epoch 3  loss 0.2130", None),
        ("one step 5/9  loss 1", None),
        ("", None),
        ("dtj: generation 2", None),
        ("[1]", None),
        ('{"rank": 0, "step": true}', None),
        ('{"rank": 0, "step": 1e400}', None),
        ("{" * 5000, None),
        ('{"rank": 0, "step": 3, "loss": "high"}', Reading(AT, 3, None, None)),
        (f'{{"rank": 0, "step": 3, "loss": 1{"0" * 400}}}', Reading(AT, 3, None, None)),
    ],
)
def test_reading_of_a_line(text: str, reading: Reading | None) -> None:
    assert of_line(Line(AT, 0, text)) == reading


@pytest.mark.parametrize(
    ("text", "value"), [("0.5", 0.5), ("", None), (None, None), ("nan", None), ("inf", None), ("x", None)]
)
def test_number(text: str | None, value: float | None) -> None:
    assert number(text) == value
