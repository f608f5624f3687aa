"""What the coordinator says and does about ranks that live, and when: the clock is the test's."""

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
    """A generation of two ranks that have stepped once a second, until 10."""

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
        """Let time pass from one deadline to the next, as the agent's loop does; when the last was."""
        now = 10.0
        for _ in range(100):
            deadline = self.monitor.deadline
            if deadline is None or deadline > end:
                return now
            now = max(now, deadline)
            self.ended += self.monitor.tick(now)
        raise AssertionError(f"busy at {now}")


def test_hang_is_named_when_its_limit_is_over_and_not_a_moment_later() -> None:
    """The stacks, which take a second, are there by then."""
    watched = Watched()
    assert watched.run_until(END - 0.01) == END - PROBE_S
    assert (watched.sent, watched.logged) == ([{"probe": True}], [])
    watched.monitor.probed({"0": WAITING, "1": STOPPED})
    assert watched.run_until(END + 10) == END <= 10.0 + MIN_LIMIT_S
    said = "no step for 30 s: rank 1 is stopped (by SIGSTOP or a debugger)"
    assert watched.sent[1:] == [{"hang": {1: said}, "generation": 1}]
    assert watched.logged == ["no step for 30 s: the stacks of all ranks follow"]
    assert watched.ended == [1]


def test_silence_that_ends_after_the_stacks_were_asked_for_is_not_spoken_of() -> None:
    watched = Watched()
    watched.run_until(END - 0.01)
    watched.monitor.probed({"0": WAITING, "1": STOPPED})
    watched.step(11, END - 0.01)
    watched.monitor.tick(END)
    assert watched.logged == []
    watched.run_until(END + 10)
    assert watched.sent == [{"probe": True}]


def test_answers_to_a_question_of_long_ago_are_not_those_of_the_next() -> None:
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


def test_agent_that_does_not_answer_is_waited_for_some_seconds() -> None:
    watched = Watched()
    watched.run_until(END - 0.01)
    watched.monitor.probed({"0": WAITING})
    assert END < watched.run_until(END + 10) < END + 5
    assert watched.sent[1]["hang"] == {1: "no step for 32 s: rank 1 does not respond"}


def test_pause_that_is_declared_while_stacks_are_collected_is_no_hang() -> None:
    watched = Watched()
    watched.run_until(END - 0.01)
    watched.step(10, END - 0.01, paused=True)
    watched.monitor.tick(1e6)
    assert (watched.monitor.deadline, watched.logged) == (None, [])


def test_hang_that_is_only_reported_is_named_once_and_until_it_ends() -> None:
    watched = Watched(restarts=False)
    watched.run_until(END - 0.01)
    watched.monitor.probed({"0": WAITING, "1": STOPPED})
    watched.run_until(END + 10)
    assert watched.sent[1:] == [{"hang": {}, "generation": 1}], "stacks are shown, nobody is ended"
    assert (watched.monitor.hang or {})["ranks"] == [1]
    assert watched.ended == []
    watched.step(11, 2000.0)
    assert watched.monitor.hang is None
    assert [line.partition(":")[0] for line in watched.logged] == ["no step for 30 s"] * 2 + [
        "the hang is over"
    ]


@pytest.mark.parametrize("step", [None, 10])
def test_generation_that_broke_is_not_looked_into(step: int | None) -> None:
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
    """A generation of two ranks that have not stepped, and last did something at 10."""

    def __post_init__(self) -> None:
        self.monitor = Monitor(
            Watchdog(), restarts=self.restarts, log=self.logged.append, broadcast=self.sent.append
        )
        self.monitor.start_generation(range(2), 0.0, generation=1, processes=1)
        self.act(10.0)

    def act(self, now: float, *, is_stopped: bool = False) -> None:
        """Rank 0 does something; so does rank 1, which is perhaps stopped."""
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


def test_rank_that_is_stopped_before_the_first_step_is_named_as_soon_as_any() -> None:
    watched = Starting()
    watched.act(10.0, is_stopped=True)
    watched.run_until(10.0 + MIN_LIMIT_S - 0.01)
    watched.monitor.probed({"0": WAITING, "1": STOPPED})
    assert watched.run_until(10.0 + MIN_LIMIT_S) == 10.0 + MIN_LIMIT_S
    assert watched.ended == [1]


def test_silence_before_the_first_step_that_is_no_hang_is_looked_into_again_as_long_after() -> None:
    watched, end = Starting(), 10.0 + FIRST_STEP_S
    for again in range(3):
        watched.run_until(end - 0.01)
        watched.monitor.probed({"0": WAITING, "1": asleep(30.0)})
        assert watched.run_until(end) == end
        assert watched.sent == [{"probe": True}] * (again + 1)
        end += FIRST_STEP_S
    assert (watched.logged, watched.ended) == ([], [])


def test_reported_hang_before_the_first_step_ends_when_the_rank_does_something() -> None:
    watched, end = Starting(restarts=False), 10.0 + FIRST_STEP_S
    watched.run_until(end - 0.01)
    watched.monitor.probed({"0": WAITING, "1": asleep(FIRST_STEP_S - PROBE_S)})
    watched.run_until(end)
    assert (watched.monitor.hang or {})["ranks"] == [1]
    watched.act(1000.0)
    assert watched.monitor.hang is None
