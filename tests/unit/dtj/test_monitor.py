"""What the coordinator logs and does about live ranks, and when; the test controls the clock."""

from dataclasses import dataclass, field

import pytest

from dtj.agent.activity import Activity
from dtj.agent.hang import FIRST_STEP_S, MIN_LIMIT_S, PROBE_S, REPORT_DELAY_S, Watchdog
from dtj.agent.heartbeats import Heartbeat
from dtj.agent.link import Message
from dtj.agent.monitor import Monitor

WAITING = ("/lib/torch/autograd/graph.py:865 in _engine_run_backward", False, 0.0)
STOPPED = ("", True, 0.0)
END = 10.0 + MIN_LIMIT_S - REPORT_DELAY_S  # of the silence of ranks that were last heard of at 10


@dataclass(kw_only=True)
class Watched:
    """A generation of two ranks that have completed a step every second, until 10."""

    restarts: bool = True
    logged: list[str] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.monitor = Monitor(
            Watchdog(), restarts=self.restarts, log=self.logged.append, broadcast=self.sent.append
        )
        self.monitor.start_generation(range(2), 0.0, generation=1, processes=1)
        for step in range(1, 11):
            self.step(step, float(step))

    def step(self, step: int, now: float, *, paused: bool = False) -> None:
        """Both ranks complete a step."""
        for rank in range(2):
            self.monitor.observe(rank, Heartbeat(1, step, paused), now)

    def run_until(self, end: float) -> float:
        """Let time pass from deadline to deadline, as the agent's loop does; return the last one."""
        now = 10.0
        for _ in range(100):
            deadline = self.monitor.deadline
            if deadline is None or deadline > end:
                return now
            now = max(now, deadline)
            self.ended += self.monitor.tick(now)
        raise AssertionError(f"busy at {now}")


def test_hang_is_named_exactly_when_its_limit_is_over() -> None:
    """The stacks, which take a second, have arrived by then."""
    watched = Watched()
    assert watched.run_until(END - 0.01) == END - PROBE_S
    assert (watched.sent, watched.logged) == ([{"probe": True}], [])
    watched.monitor.probed({"0": WAITING, "1": STOPPED})
    assert watched.run_until(END + 10) == END <= 10.0 + MIN_LIMIT_S
    said = "no step for 30 s: rank 1 is stopped (by SIGSTOP or a debugger)"
    assert watched.sent[1:] == [{"hang": {1: said}, "generation": 1}]
    assert watched.logged == ["no step for 30 s: the stacks of all ranks follow"]
    assert watched.ended == [1]


def test_silence_that_ends_after_the_stacks_were_requested_is_not_logged() -> None:
    watched = Watched()
    watched.run_until(END - 0.01)
    watched.monitor.probed({"0": WAITING, "1": STOPPED})
    watched.step(11, END - 0.01)
    watched.monitor.tick(END)
    assert watched.logged == []
    watched.run_until(END + 10)
    assert watched.sent == [{"probe": True}]


def test_answers_to_an_earlier_probe_do_not_count_for_the_next() -> None:
    watched = Watched()
    watched.run_until(END - 0.01)
    watched.monitor.probed({"0": STOPPED, "1": WAITING})
    watched.step(11, END - 0.01)
    watched.monitor.tick(END)
    watched.monitor.tick(END + MIN_LIMIT_S)
    assert watched.sent == [{"probe": True}] * 2
    watched.monitor.probed({"0": WAITING, "1": STOPPED})
    watched.monitor.tick(END + MIN_LIMIT_S)
    assert list(watched.sent[2]["hang"]) == [1]


def test_verdict_waits_some_seconds_for_an_agent_that_does_not_respond() -> None:
    watched = Watched()
    watched.run_until(END - 0.01)
    watched.monitor.probed({"0": WAITING})
    assert END < watched.run_until(END + 10) < END + 5
    assert watched.sent[1]["hang"] == {1: "no step for 32 s: rank 1 does not respond"}


def test_pause_that_is_declared_while_stacks_are_collected_is_not_a_hang() -> None:
    watched = Watched()
    watched.run_until(END - 0.01)
    watched.step(10, END - 0.01, paused=True)
    watched.monitor.tick(1e6)
    assert (watched.monitor.deadline, watched.logged) == (None, [])


def test_hang_that_is_only_reported_is_logged_once_and_lasts_until_it_ends() -> None:
    watched = Watched(restarts=False)
    watched.run_until(END - 0.01)
    watched.monitor.probed({"0": WAITING, "1": STOPPED})
    watched.run_until(END + 10)
    assert watched.sent[1:] == [{"hang": {}, "generation": 1}], "stacks are shown, no rank is killed"
    assert (watched.monitor.hang or {})["ranks"] == [1]
    assert watched.ended == []
    watched.step(11, 2000.0)
    assert watched.monitor.hang is None
    assert [line.partition(":")[0] for line in watched.logged] == ["no step for 30 s"] * 2 + [
        "the hang is over"
    ]


@pytest.mark.parametrize("step", [None, 10])
def test_probe_is_cancelled_when_the_generation_breaks(step: int | None) -> None:
    watched = Watched()
    watched.run_until(END - 0.01)
    watched.monitor.cancel_probe()
    watched.monitor.start_generation(range(2), END, generation=2, processes=1)
    watched.monitor.probed({"0": WAITING, "1": STOPPED})
    watched.monitor.observe(0, Heartbeat(2, step, False), END)
    watched.monitor.tick(END + MIN_LIMIT_S)
    assert watched.sent == [{"probe": True}], "the first steps may take longer"


@dataclass(kw_only=True)
class Starting(Watched):
    """A generation of two ranks without a step, last active at 10."""

    def __post_init__(self) -> None:
        self.monitor = Monitor(
            Watchdog(), restarts=self.restarts, log=self.logged.append, broadcast=self.sent.append
        )
        self.monitor.start_generation(range(2), 0.0, generation=1, processes=1)
        self.act(10.0)

    def act(self, now: float, *, is_stopped: bool = False) -> None:
        """Rank 0 is active, and rank 1 too or stopped."""
        self.monitor.observe_activity(0, Activity(1, False), now)
        self.monitor.observe_activity(1, Activity(1, is_stopped), now)


def asleep(asleep_s: float) -> tuple[str, bool, float]:
    return "/app/train.py:9 in load", False, asleep_s


def test_rank_that_sleeps_before_the_first_step_is_named_after_a_long_time() -> None:
    watched, end = Starting(), 10.0 + FIRST_STEP_S
    assert watched.run_until(end - 0.01) == end - PROBE_S
    watched.monitor.probed({"0": WAITING, "1": asleep(FIRST_STEP_S - PROBE_S)})
    assert watched.run_until(end) == end
    said = "no step yet and no activity for 600 s: rank 1 is in /app/train.py:9 in load"
    assert watched.sent[1:] == [{"hang": {1: said}, "generation": 1}]
    assert watched.ended == [1]


def test_rank_that_is_stopped_before_the_first_step_is_named_at_the_usual_limit() -> None:
    watched = Starting()
    watched.act(10.0, is_stopped=True)
    watched.run_until(10.0 + MIN_LIMIT_S - 0.01)
    watched.monitor.probed({"0": WAITING, "1": STOPPED})
    assert watched.run_until(10.0 + MIN_LIMIT_S) == 10.0 + MIN_LIMIT_S
    assert watched.ended == [1]


def test_silence_before_the_first_step_that_is_not_a_hang_is_probed_again_later() -> None:
    watched, end = Starting(), 10.0 + FIRST_STEP_S
    for again in range(3):
        watched.run_until(end - 0.01)
        watched.monitor.probed({"0": WAITING, "1": asleep(30.0)})
        assert watched.run_until(end) == end
        assert watched.sent == [{"probe": True}] * (again + 1)
        end += FIRST_STEP_S
    assert (watched.logged, watched.ended) == ([], [])


def test_reported_hang_before_the_first_step_ends_when_the_rank_is_active() -> None:
    watched, end = Starting(restarts=False), 10.0 + FIRST_STEP_S
    watched.run_until(end - 0.01)
    watched.monitor.probed({"0": WAITING, "1": asleep(FIRST_STEP_S - PROBE_S)})
    watched.run_until(end)
    assert (watched.monitor.hang or {})["ranks"] == [1]
    watched.act(1000.0)
    assert watched.monitor.hang is None
