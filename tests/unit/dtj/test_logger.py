"""Log lines: those of a rank, and the output of ranks as the agent prints it."""

import csv
import json
import math
import os
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dtj.agent.rank.log_lines import LogLines
from dtj.errors import RecipeError
from dtj.parallel import parallelize
from dtj.ranks import agreement
from dtj.settings import Settings
from dtj.telemetry import metrics, report_pipe
from dtj.telemetry.logger import Logger


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def logger(clock: Clock, *, rank: int = 0, **settings: Any) -> Logger:
    return Logger(
        settings=Settings(**settings), rank=rank, meter=metrics.Meter(total_steps=100, clock=clock, tokens=3)
    )


def end(*loggers: Logger, step: int, samples: int = 1, epoch: int = 0, waited_s: float = 0) -> None:
    """What Run does at the end of a step; the first logger is rank 0's."""
    due = {d.is_due for d in loggers}
    assert len(due) == 1
    for d in loggers:
        d.end(step, samples=samples, epoch=epoch, waited_s=waited_s)
    if due.pop():
        texts = [d.pending() for d in loggers]
        for number, d in enumerate(loggers):
            d.deliver([] if number else texts)


def train(*loggers: Logger, clock: Clock, steps: range, step_s: float, **values: Any) -> None:
    """Steps of one or several ranks; the message of a step is received at the end of the next step."""
    requested = False
    for step in steps:
        for d in loggers:
            d.begin(step)
            d.note({"loss": torch.tensor(1 / step), **values}, now=False)
        clock.now += step_s
        if requested:
            for d in loggers:
                d.is_due = True
        end(*loggers, step=step, samples=8 * step, epoch=step // 50)
        requested = True in [d.wants_line() for d in loggers]


def lines(capsys: pytest.CaptureFixture[str]) -> list[int]:
    return [int(line.split()[1].split("/")[0]) for line in capsys.readouterr().out.splitlines()]


def test_value_is_logged_without_its_graph(capsys: pytest.CaptureFixture[str]) -> None:
    """It would keep the activations of the step, and torch warns of a number that is made of it."""
    d = logger(Clock())
    d.begin(1)
    d.note({"loss": 2 * torch.ones(1, requires_grad=True)}, now=False)
    end(d, step=1)
    assert "loss 2.0000" in capsys.readouterr().out


def test_first_and_last_step_are_logged_and_about_one_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    train(logger(clock), clock=clock, steps=range(1, 101), step_s=0.1)
    found = lines(capsys)
    assert (found[0], found[-1]) == (1, 100)
    assert all(10 <= b - a <= 14 for a, b in pairwise(found[:-1]))


def test_flag_log_every_counts_steps(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    train(logger(clock, log_every=25), clock=clock, steps=range(1, 101), step_s=9)
    assert lines(capsys) == [1, 25, 50, 75, 100]


def test_text_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    d = logger(clock)
    d.begin(1)
    d.note({"loss": torch.tensor(0.25), "accuracy": 0.5, "lr": 1e-5}, now=False)
    clock.now = 2.0
    end(d, step=1, samples=16, waited_s=0.5)
    assert capsys.readouterr().out == (
        "step 1/100  epoch 0  loss 0.2500  accuracy 0.5000  lr 1.000e-05  8 samples/s  24 tokens/s  "
        "data wait 25%  eta 0:03:18\n"
    )


def test_number_noted_between_lines_waits_for_the_next_one(capsys: pytest.CaptureFixture[str]) -> None:
    d = logger(Clock(), log_every=10)
    d.begin(1)
    end(d, step=1)
    d.begin(2)
    d.note({"accuracy": 0.5, "loss": torch.tensor(1.0)}, now=False)
    end(d, step=2)
    d.begin(10)
    d.note({"loss": torch.tensor(2.0)}, now=False)
    end(d, step=10)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("step 1/100")
    assert "step 10/100  epoch 0  loss 2.0000  accuracy 0.5000" in second


def test_value_of_an_earlier_step_is_repeated_for_people_only(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An evaluation after each epoch: a table or a service must not have its result at other steps."""
    seen: list[tuple[int, dict[str, float]]] = []
    d = Logger(
        settings=Settings(log_every=1, metrics=(str(tmp_path / "run.csv"), str(tmp_path / "run.jsonl"))),
        rank=0,
        meter=metrics.Meter(total_steps=100, clock=Clock()),
        callbacks=[lambda step, values: seen.append((step, values))],
    )
    for step, logged in ((1, {"loss": 2.0, "accuracy": 0.5}), (2, {"loss": 1.0}), (3, {"accuracy": 0.75})):
        d.begin(step)
        d.note({**logged}, now=False)
        end(d, step=step)
    assert [(step, values.get("loss"), values.get("accuracy")) for step, values in seen] == [
        (1, 2.0, 0.5),
        (2, 1.0, None),
        (3, None, 0.75),
    ]
    rows = list(csv.DictReader((tmp_path / "run.csv").read_text().splitlines()))
    assert [(row["loss"], row["accuracy"]) for row in rows] == [("2.0", "0.5"), ("1.0", ""), ("", "0.75")]
    _, _, second, _ = (tmp_path / "run.jsonl").read_text().splitlines()
    assert json.loads(second)["metrics"] == {}
    assert "loss 1.0000  accuracy 0.5000" in capsys.readouterr().out.splitlines()[1]


def test_values_are_averaged_by_name_over_the_ranks_that_log_them(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [logger(Clock(), rank=rank) for rank in range(3)]
    for rank, d in enumerate(ranks):
        d.begin(1)
        if rank == 0:
            d.note({"lr": 0.5}, now=False)
        d.note({"loss": torch.tensor(float(rank))}, now=False)
        if rank == 2:
            d.note({"lr of 2": 7.0}, now=False)
    end(*ranks, step=1)
    assert "loss 1.0000  lr 0.5000  lr of 2 7.0000" in capsys.readouterr().out


def test_line_that_one_rank_asks_for_is_printed_with_its_own_step(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    ranks = [logger(clock, rank=rank) for rank in range(2)]
    train(*ranks, clock=clock, steps=range(1, 3), step_s=0.1)
    ranks[1].begin(3)
    ranks[1].note({"score": 0.75}, now=True)
    ranks[0].begin(3)
    end(*ranks, step=3)
    assert lines(capsys) == [1]
    train(*ranks, clock=clock, steps=range(4, 6), step_s=0.1)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("step 3/100  epoch 0  loss")
    assert "score 0.7500" in shown[0]
    assert shown[1].startswith("step 5/100")


def test_any_number_of_values_can_be_logged(capsys: pytest.CaptureFixture[str]) -> None:
    d = logger(Clock())
    d.begin(1)
    d.note({f"value{number}": number for number in range(40)}, now=False)
    end(d, step=1)
    assert "value39 39.0000" in capsys.readouterr().out


def test_line_that_one_rank_delivers_twice_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [logger(Clock(), rank=rank) for rank in range(2)]
    for d in ranks:
        d.begin(1)
        d.end(1, samples=1, epoch=0, waited_s=0)
    ranks[0].deliver([d.pending() for d in ranks])  # rank 1 lost its connection at this moment
    for d in ranks:
        d.forget()
        d.begin(2)
    end(*ranks, step=2)
    assert lines(capsys) == [1, 2]


def test_json_line_has_null_for_nan(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    d = logger(clock, log_format="json")
    d.begin(1)
    d.note({"loss": torch.tensor(math.nan)}, now=False)
    clock.now = 1.0
    end(d, step=1, samples=4, waited_s=1.0)
    assert json.loads(capsys.readouterr().out) == {
        "step": 1,
        "totalSteps": 100,
        "epoch": 0,
        "loss": None,
        "metrics": {},
        "samplesPerSecond": 4.0,
        "tokensPerSecond": 12.0,
        "mfu": None,
        "dataWait": 1.0,
        "stepSecondsP50": None,
        "stepSecondsP99": None,
        "memoryBytes": None,
        "etaSeconds": 99.0,
    }


def test_report_has_the_newest_of_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """One new name per epoch, besides the name of every line: a report that is too long would end the run."""
    agent, rank = os.pipe()
    monkeypatch.setattr(report_pipe, "_pipe", rank)
    d = logger(Clock(), log_every=1)
    for epoch in range(1, 201):
        now: dict[str, Any] = {"grad norm": 1.5, f"held out/accuracy of epoch {epoch}": 0.5}
        d.begin(epoch)
        d.note(now, now=False)
        end(d, step=epoch, samples=epoch, epoch=epoch)
        report = json.loads(os.read(agent, 2 * report_pipe.MAX_BYTES))["metrics"]
        assert report == d.meter.metrics or epoch > 50
    os.close(agent)
    os.close(rank)
    assert 50 < len(report) < len(d.meter.metrics) == 201
    assert report == dict(list(d.meter.metrics.items())[1 - len(report) :]) | now


def test_name_with_half_a_character_can_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    """As of a class that is named after a file; it would end a run whose metrics go to a table."""
    clock = Clock()
    line = logger(clock, log_every=1, metrics=(str(tmp_path / "run.csv"),))
    line.begin(1)
    line.note({"of \udcff": 1.0}, now=True)
    end(line, step=1)
    header, row = (tmp_path / "run.csv").read_text().splitlines()
    assert (header.rpartition(",")[2], row.rpartition(",")[2]) == ("of \\udcff", "1.0")
    assert "of \\udcff 1.0000" in capsys.readouterr().out


def test_tensor_with_several_elements_is_rejected() -> None:
    with pytest.raises(RecipeError, match=r"run.log got logits of shape \(2, 3\)"):
        logger(Clock()).note({"logits": torch.zeros(2, 3)}, now=False)


def test_step_times_and_mfu() -> None:
    clock = Clock()
    m = metrics.Meter(
        total_steps=200, clock=clock, flops_per_sample=5e9, peak_flops=2e12, memory=lambda: 4096
    )
    for step in range(101):
        m.begin_step()
        clock.now += 0.5 if step else 9.0
    found = m.reading(step=100, at=clock.now, samples=5900, epoch=0, metrics={})
    assert found["samplesPerSecond"] == pytest.approx(100)
    assert found["mfu"] == pytest.approx(0.25)
    assert (found["stepSecondsP50"], found["stepSecondsP99"], found["memoryBytes"]) == (0.5, 0.5, 4096)
    assert m.summary(step=100, waited_s=5.9) == (
        "100 steps in 0:00:59, step time 500.0 ms (p50), 500.0 ms (p99), data wait 10%, peak memory 0 MiB"
    )
    m.begin_step()
    assert (
        m.reading(step=101, at=clock.now, samples=5901, epoch=0, metrics={})["stepSecondsP99"] == 0.5
    )  # 1 of 101
    assert "mfu 25.0%" in metrics.as_text(found)


def test_mfu_does_not_count_what_is_recomputed() -> None:
    def counted(*, is_recomputed: bool) -> float | None:
        model = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in "ab")
        )
        if is_recomputed:
            parallelize.recompute(model, model)
        m = metrics.Meter(total_steps=1, clock=Clock(), peak_flops=1e12)
        with m.counting(2):
            model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        return m.flops_per_sample

    forward, backward = 2 * 32, 2 * 64  # of two layers, for a sample: a multiply and an add for each weight
    assert counted(is_recomputed=False) == counted(is_recomputed=True) == forward + backward


def test_mfu_counts_all_passes_of_the_first_step() -> None:
    """As of a GAN, or of two losses with a backward each."""
    layer = torch.nn.Linear(4, 4)
    m = metrics.Meter(total_steps=3, clock=Clock(), peak_flops=1e12)
    for _ in range(3):
        m.begin_step()
        for _ in range(2):
            with m.counting(2):
                layer(torch.ones(2, 4)).sum().backward()
        assert m.flops_per_sample == 2 * (32 + 32)


class FakeEvents:
    """Events of an accelerator that is `done` steps ahead of nothing, and takes 2 s a step."""

    def __init__(self) -> None:
        self.recorded = self.done = 0

    def __call__(self) -> "FakeEvent":
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, events: FakeEvents) -> None:
        self.events, self.number = events, 0

    def record(self) -> None:
        self.events.recorded += 1
        self.number = self.events.recorded

    def query(self) -> bool:
        return self.number <= self.events.done

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        assert end_event.query(), "it would wait"
        return 2000.0 * (end_event.number - self.number)


def test_step_times_of_an_accelerator_are_its_own() -> None:
    """The program queues a step in 1 ms; steps that are not done are measured later, without a wait."""
    clock, events = Clock(), FakeEvents()
    m = metrics.Meter(total_steps=20, clock=clock, event=events)
    for step in range(10):
        events.done = step // 2
        m.begin_step()
        clock.now += 0.001
    found = m.reading(step=10, at=clock.now, samples=10, epoch=0, metrics={})
    assert (found["stepSecondsP50"], found["stepSecondsP99"]) == (2.0, 2.0)
    assert len(m._lengths) == 3
    events.done = 10
    m.begin_step()
    assert len(m._lengths) == 9


def test_rate_is_none_until_time_has_passed() -> None:
    clock = Clock()
    m = metrics.Meter(total_steps=10, clock=clock)
    assert m.reading(step=1, at=0.0, samples=1, epoch=0, metrics={})["samplesPerSecond"] is None


@given(text=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300)))
def test_lines_are_the_same_however_the_pipe_cuts_them(text: bytes, cuts: list[int]) -> None:
    text = text.replace(b"\r", b"")
    whole, pieces = LogLines(rank=1, as_json=False), LogLines(rank=1, as_json=False)
    expected = whole.feed(text) + whole.end()
    cut_at = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    found = b"".join(pieces.feed(text[a:b]) for a, b in pairwise(cut_at)) + pieces.end()
    assert found == expected
    assert expected.count(b"\n") == (len(text.rstrip(b"\n").split(b"\n")) if text else 0)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        pytest.param(b"a\nb\n", "[rank 3] a\n[rank 3] b\n", id="two lines"),
        pytest.param(b"a\r\nb\n", "[rank 3] a\n[rank 3] b\n", id="Windows line ends"),
        pytest.param(b"10%\r20%\r\n", "[rank 3] 10%\n[rank 3] 20%\n", id="each state of a progress bar"),
        pytest.param(b"\n", "[rank 3] \n", id="an empty line"),
        pytest.param(b"\r10%\r   \rdone\n", "[rank 3] 10%\n[rank 3] done\n", id="a bar that is erased"),
        pytest.param(
            b"\r50%\n\r10%\x1b[A\n\r\x1b[32m20%\x1b[0m\x1b[K\x1b[A",
            "[rank 3] 50%\n[rank 3] 10%\n[rank 3] \x1b[32m20%\x1b[0m\n",
            id="a bar below another one, in colour",
        ),
        pytest.param(b"no end", "[rank 3] no end\n", id="a line that was cut off"),
    ],
)
def test_prefix(data: bytes, shown: str) -> None:
    found = LogLines(rank=3, as_json=False)
    assert (found.feed(data) + found.end()).decode() == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        pytest.param('{"loss": 1.5}', '{"rank": 3, "loss": 1.5}', id="an object"),
        pytest.param("[1]", '{"rank": 3, "message": "[1]"}', id="other JSON"),
        pytest.param("läuft", '{"rank": 3, "message": "läuft"}', id="text"),
        pytest.param(
            r'{"file": "a\udcff"}', r'{"rank": 3, "file": "a\udcff"}', id="a file name that is not UTF-8"
        ),
        pytest.param("[" * 3000, f'{{"rank": 3, "message": "{"[" * 3000}"}}', id="nested too deeply"),
    ],
)
def test_line_as_json(line: str, shown: str) -> None:
    found = LogLines(rank=3, as_json=True)
    assert found.feed(line.encode() + b"\n").decode() == shown + "\n"


def test_last_lines_of_both_streams_are_kept_in_their_order() -> None:
    recent = deque[bytes](maxlen=3)
    out, err = (LogLines(rank=0, as_json=as_json, recent=recent) for as_json in (False, True))
    out.feed(b"a\nb\n\n")
    err.feed(b"x" * 1000 + b"\n")
    out.feed(b"no end")
    out.end()
    assert [*recent] == [b"b", b"x" * 200, b"no end"]


def test_line_without_an_end_does_not_use_unlimited_memory() -> None:
    found = LogLines(rank=0, as_json=False)
    assert sum(len(found.feed(b"x" * 50_000)) for _ in range(4)) > 100_000


@pytest.mark.parametrize(
    ("steps", "seconds", "pause"),
    [
        pytest.param(10, 0.01, 200, id="short steps: five messages a second"),
        pytest.param(3, 1.5, 1, id="steps longer than that: a message a step, read after the next one"),
        pytest.param(1, 3.0, 0, id="long steps: read after the same step"),
        pytest.param(0, 0.0, 1, id="nothing measured yet"),
    ],
)
def test_steps_between_messages(steps: int, seconds: float, pause: int) -> None:
    assert agreement.interval(steps, seconds) == pause
