"""What the coordinator logs and does about live ranks, and when; the test controls the clock."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from dtj.agent.coordinator.watch.hang import FIRST_STEP_S, MIN_LIMIT_S, PROBE_S, REPORT_DELAY_S, Watchdog
from dtj.agent.coordinator.watch.monitor import WORKING_S, Monitor
from dtj.agent.coordinator.watch.straggler import MIN_WINDOW_S, WINDOW_STEPS
from dtj.agent.wire.link import Message
from dtj.agent.wire.probe import USES_CPU, Place, Probe
from dtj.agent.wire.signs import Activity, Heartbeat

WAITING = Probe(place=Place("/lib/torch/autograd/graph.py:865 in _engine_run_backward"), responds=True)
STOPPED = Probe(is_stopped=True)
LOADS = Probe(place=Place("/app/train.py:9 in load"), responds=True)
LOOPS = Probe(place=Place("/app/train.py:12 in spin", path=1), responds=True, does=USES_CPU)
EVALUATES = Probe(place=Place("/app/train.py:33 in evaluate"), responds=True, does=USES_CPU, moved=True)
END = 10.0 + MIN_LIMIT_S - REPORT_DELAY_S  # of the silence of ranks that were last heard of at 10


@dataclass(kw_only=True)
class Watched:
    """A generation of two ranks that have completed a step every second, until 10."""

    restarts: bool = True
    ranks: int = 2
    logged: list[str] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    now: float = 10.0

    def __post_init__(self) -> None:
        self.monitor = Monitor(
            Watchdog(),
            restarts=self.restarts,
            log=self.logged.append,
            broadcast=self.sent.append,
            tell_each=lambda message: self.sent.append(message(range(self.ranks))),
        )
        self.monitor.start_generation(range(self.ranks), 0.0, generation=1, processes=1)
        self.begin()

    def begin(self) -> None:
        for step in range(1, 11):
            self.step(step, float(step))

    def step(self, step: int, now: float, *, pause_s: float | None = None) -> None:
        """All ranks complete a step."""
        for rank in range(self.ranks):
            self.monitor.observe(rank, Heartbeat(1, step, pause_s), now)

    def answer(self, *probes: Probe, number: int | None = None) -> None:
        """The agents answer the last request; the first rank's probe is first."""
        last = self.requests[-1]["probe"] if number is None else number
        self.monitor.probed(last, dict(enumerate(probes)))

    @property
    def requests(self) -> list[Message]:
        return [message for message in self.sent if "probe" in message]

    @property
    def verdicts(self) -> list[Message]:
        return [message for message in self.sent if "hang" in message]

    def run_until(self, end: float, *probes: Probe) -> float:
        """Let time pass from deadline to deadline, until ranks are killed; return the last one.

        probes  what every request finds; without any, no agent answers
        """
        for _ in range(1000):
            deadline = self.monitor.deadline
            if deadline is None or deadline > end or self.ended:
                return self.now
            self.now = max(self.now, deadline)
            asked = len(self.requests)
            self.ended += self.monitor.tick(self.now)
            if probes and len(self.requests) > asked:
                self.answer(*probes)
        raise AssertionError(f"busy at {self.now}")


def hang(messages: dict[int, str], *, is_shared: bool = False) -> dict[str, Any]:
    return {"hang": messages, "generation": 1, "is_shared": is_shared}


def test_hang_is_named_exactly_when_its_limit_is_over() -> None:
    """The stacks, which take a second each time, have arrived by then."""
    watched = Watched()
    assert watched.run_until(END - 0.01) == END - PROBE_S
    assert (watched.sent, watched.logged) == ([{"probe": 1, "looks_s": 5.0}], [])
    watched.answer(WAITING, STOPPED)
    assert watched.run_until(END + 10) == END <= 10.0 + MIN_LIMIT_S
    said = "no step for 30 s: rank 1 is stopped (by SIGSTOP or a debugger)"
    assert watched.verdicts == [hang({1: said})]
    assert watched.logged == ["no step for 30 s: the stacks of all ranks follow"]
    assert watched.ended == [1]


@pytest.mark.parametrize(("is_cut_off", "named"), [(False, 1), (True, 0)])
def test_pod_that_was_cut_off_or_frozen_after_a_slow_window_is_not_named(
    *, is_cut_off: bool, named: int
) -> None:
    watched = Watched()
    for number, work_s in enumerate([(0.0, 0.0), (0.6, 1.2), (1.2, 31.8), (1.8, 61.8)]):
        if is_cut_off and number == 2:
            watched.monitor.excuse(watched.now)  # its agent is connected again
        watched.now += 2 * MIN_WINDOW_S
        for rank, busy_s in enumerate(work_s):
            busy_time = (WINDOW_STEPS * number, busy_s)
            watched.monitor.observe(rank, Heartbeat(1, 10, None, busy_time), watched.now)
    assert sum(line.startswith("straggler: rank 1") for line in watched.logged) == named


def after_long_steps() -> Watched:
    """Of the last steps, two took 100 s each; the last one ended at 240."""
    watched = Watched()
    for step, now in ((11, 110.0), (12, 210.0), *((number, 198.0 + number) for number in range(13, 43))):
        watched.step(step, now)
    return watched


def test_stopped_rank_is_named_at_the_usual_limit_although_steps_have_taken_longer() -> None:
    watched = after_long_steps()
    assert watched.run_until(1e6, WAITING, STOPPED) == 240.0 + MIN_LIMIT_S - REPORT_DELAY_S
    assert watched.ended == [1]


def test_rank_that_does_nothing_is_left_alone_as_long_as_long_steps_take() -> None:
    watched = after_long_steps()
    assert (
        240.0 + 150.0 - REPORT_DELAY_S <= watched.run_until(1e6, WAITING, LOADS) < 240.0 + 150.0 + MIN_LIMIT_S
    )
    assert (watched.ended, len(watched.verdicts)) == ([1], 1)
    assert watched.logged == [f"no step for {watched.now - 240.0:.0f} s: the stacks of all ranks follow"]


def test_rank_that_starts_again_gets_as_long_as_ranks_took_to_start() -> None:
    """It prepares its data for half an hour before its first step, as it did when the job started."""
    watched = Watched()
    watched.monitor.start_generation(range(2), 10.0, generation=2, processes=1)
    for step in range(11, 21):
        watched.step(step, 2000.0 + step)
    watched.monitor.start_generation(range(2), 3000.0, generation=3, processes=1)
    watched.monitor.observe(0, Heartbeat(3, 20, None), 3000.0)  # it keeps its memory, and waits
    most_s = watched.monitor.startup_s + 900.0
    assert 3000.0 + most_s <= watched.run_until(1e6, WAITING, LOOPS) < 3000.0 + most_s + 10 * MIN_LIMIT_S
    assert watched.ended == [1]
    assert f"It counts as work until {most_s:.0f} s without a step" in watched.logged[0]


def test_rank_at_work_is_left_alone_and_named_in_the_log() -> None:
    """It may evaluate; the others wait for it."""
    watched = Watched()
    watched.run_until(600.0, WAITING, EVALUATES)
    assert (watched.verdicts, watched.ended) == ([], [])
    assert watched.logged[0] == (
        "no step for 30 s: rank 1 is in /app/train.py:33 in evaluate and uses CPU; the other ranks wait for"
        " it. It counts as work until 900 s without a step (spec.hang.workingSeconds,"
        " DTJ_HANG_WORKING_SECONDS)"
    )
    assert len(watched.logged) == 5, (
        "said again when the silence has doubled: after 30, 60, 120, 240 and 480 s"
    )
    watched.step(11, 610.0)
    assert watched.logged[5:] == ["the ranks continue after 600 s"]


def test_rank_that_has_worked_for_too_long_hangs() -> None:
    watched = Watched()
    assert 10 + WORKING_S <= watched.run_until(1e6, WAITING, EVALUATES) < 10 + WORKING_S + MIN_LIMIT_S
    assert watched.ended == [1]


@pytest.mark.parametrize(
    ("second", "given_up_after_s"),
    [
        pytest.param(LOOPS, WORKING_S / 3, id="in one function all the time"),
        pytest.param(
            Probe(place=Place("/app/train.py:12 in spin", path=2), responds=True, does=USES_CPU),
            WORKING_S,
            id="in another one at a later look",
        ),
    ],
)  # fmt: skip
def test_loop_in_one_function_is_given_up_earlier(second: Probe, given_up_after_s: float) -> None:
    watched = Watched()
    watched.run_until(END, WAITING, LOOPS)
    end = watched.run_until(1e6, WAITING, second)
    assert 10 + given_up_after_s <= end < 10 + given_up_after_s + MIN_LIMIT_S
    assert watched.ended == [1]


def test_looks_of_an_earlier_silence_do_not_count() -> None:
    watched = Watched()
    watched.run_until(END, WAITING, LOOPS)
    watched.step(11, END + 1)
    moved = Probe(place=Place("/app/train.py:12 in spin", path=2), responds=True, does=USES_CPU)
    assert watched.run_until(1e6, WAITING, moved) < END + WORKING_S / 3 + 2 * MIN_LIMIT_S


def test_ranks_that_all_wait_are_restarted_together_and_none_is_blamed() -> None:
    watched = Watched(ranks=3)
    watched.run_until(END + 10, WAITING, WAITING, WAITING)
    [verdict] = watched.verdicts
    assert (verdict["is_shared"], sorted(verdict["hang"]), watched.ended) == (True, [0, 1, 2], [0, 1, 2])
    assert "all ranks wait for each other, so no rank is to blame" in verdict["hang"][0]


def test_silence_that_ends_after_the_stacks_were_requested_is_not_logged() -> None:
    watched = Watched()
    watched.run_until(END - 0.01, WAITING, STOPPED)
    watched.step(11, END - 0.01)
    watched.monitor.tick(END)
    assert watched.logged == []
    watched.run_until(END + 10)
    assert (len(watched.requests), watched.verdicts) == (1, [])


def test_answers_to_an_earlier_request_do_not_count_for_the_next() -> None:
    watched = Watched()
    watched.run_until(END - 0.01)
    watched.step(11, END - 0.01)
    watched.monitor.tick(END)
    watched.monitor.tick(END + MIN_LIMIT_S)
    watched.answer(STOPPED, WAITING, number=1)
    watched.answer(WAITING, STOPPED, number=2)
    watched.monitor.tick(END + MIN_LIMIT_S)
    assert list(watched.verdicts[0]["hang"]) == [1]


def test_verdict_waits_for_an_agent_that_gets_no_processor_time() -> None:
    """An agent that is gone is silent before the wait is over."""
    watched = Watched()
    watched.run_until(END - 0.01, WAITING)
    assert END < watched.run_until(END + 60) < 10.0 + 60.0
    assert watched.verdicts == [hang({1: "no step for 52 s: rank 1 does not respond"})]


def test_pause_that_is_declared_while_stacks_are_collected_is_not_a_hang() -> None:
    watched = Watched()
    watched.run_until(END - 0.01, WAITING, STOPPED)
    watched.step(10, END - 0.01, pause_s=900.0)
    assert watched.run_until(END + 800) == END - PROBE_S
    assert watched.logged == []


def test_stall_within_a_pause_is_named_when_the_pause_is_over_its_limit() -> None:
    watched = Watched()
    watched.monitor.observe(1, Heartbeat(1, 10, 900.0), 10.0)
    assert watched.run_until(2000.0, WAITING, LOADS) == 910.0
    where = "rank 1 is in /app/train.py:9 in load"
    said = f"no step for 900 s: {where}; the pause that it declared is over its limit"
    assert watched.verdicts == [hang({1: said})]


def test_work_within_a_pause_is_left_alone_for_some_time_after_the_limit() -> None:
    watched = Watched()
    watched.monitor.observe(1, Heartbeat(1, 10, 900.0), 10.0)
    assert 910 + WORKING_S <= watched.run_until(1e6, WAITING, EVALUATES) < 910 + WORKING_S + MIN_LIMIT_S


def test_hang_that_is_only_reported_is_logged_once_and_lasts_until_it_ends() -> None:
    watched = Watched(restarts=False)
    watched.run_until(END + 10, WAITING, STOPPED)
    assert watched.verdicts == [hang({})], "stacks are shown, no rank is killed"
    assert (watched.monitor.hang or {})["ranks"] == [1]
    assert watched.ended == []
    watched.step(11, 2000.0)
    assert watched.monitor.hang is None
    assert [line.partition(":")[0] for line in watched.logged] == ["no step for 30 s"] * 2 + [
        "the hang is over"
    ]


def test_reported_hang_without_a_culprit_names_no_rank() -> None:
    watched = Watched(restarts=False)
    watched.run_until(END + 10, WAITING, WAITING)
    assert (watched.monitor.hang or {})["ranks"] == []


@pytest.mark.parametrize("step", [None, 10])
def test_probe_is_cancelled_when_the_generation_breaks(step: int | None) -> None:
    watched = Watched()
    watched.run_until(END - 0.01)
    watched.monitor.cancel_probe()
    watched.monitor.start_generation(range(2), END, generation=2, processes=1)
    watched.answer(WAITING, STOPPED)
    watched.monitor.observe(0, Heartbeat(2, step, None), END)
    watched.monitor.tick(END + MIN_LIMIT_S)
    assert len(watched.sent) == 1, "the first steps may take longer"


@dataclass(kw_only=True)
class Starting(Watched):
    """A generation of two ranks without a step, last active at 10."""

    def begin(self) -> None:
        self.act(10.0)

    def act(self, now: float, *, is_stopped: bool = False) -> None:
        """Rank 0 is active, and rank 1 too or stopped."""
        self.monitor.observe_activity(0, Activity(1, False), now)
        self.monitor.observe_activity(1, Activity(1, is_stopped), now)


def asleep(asleep_s: float) -> Probe:
    return Probe(place=Place("/app/train.py:9 in load"), responds=True, asleep_s=asleep_s)


def test_rank_that_sleeps_before_the_first_step_is_named_after_a_long_time() -> None:
    watched, end = Starting(), 10.0 + FIRST_STEP_S
    assert watched.run_until(end - 0.01, WAITING, asleep(FIRST_STEP_S - PROBE_S)) == end - PROBE_S
    assert watched.run_until(end) == end
    said = "no step yet and no activity for 600 s: rank 1 is in /app/train.py:9 in load"
    assert watched.verdicts == [hang({1: said})]
    assert watched.ended == [1]


def test_rank_that_is_stopped_before_the_first_step_is_named_at_the_usual_limit() -> None:
    watched = Starting()
    watched.act(10.0, is_stopped=True)
    assert watched.run_until(10.0 + MIN_LIMIT_S, WAITING, STOPPED) == 10.0 + MIN_LIMIT_S
    assert watched.ended == [1]


def test_ranks_that_wait_for_one_that_has_ended_before_the_first_step_are_judged_at_the_usual_limit() -> None:
    """No rank is left that could let them continue. A plain script's rank returned too early, for example."""
    watched, end = Starting(), 10.0 + MIN_LIMIT_S
    watched.monitor.ended(1)
    assert watched.run_until(1e6, WAITING) == end
    place = "/lib/torch/autograd/graph.py:865 in _engine_run_backward"
    said = f"the ranks that are left wait for one that has ended (rank 0 in {place})"
    said = f"no step yet and no activity for 30 s: {said}"
    assert watched.verdicts == [hang({0: said}, is_shared=True)]


def test_rank_that_sleeps_after_another_has_ended_is_named_after_a_long_time() -> None:
    """It may download in silence, and need none of the ranks that have ended."""
    watched = Starting(ranks=3)
    watched.monitor.observe_activity(2, Activity(1, False), 10.0)
    watched.monitor.ended(2)
    assert watched.run_until(1e6, WAITING, asleep(FIRST_STEP_S)) == 10.0 + FIRST_STEP_S
    assert watched.ended == [1]


def test_rank_that_is_left_alone_is_not_to_blame_for_the_wait_for_one_that_has_ended() -> None:
    watched = Watched()
    watched.monitor.ended(1)
    watched.run_until(1e6, WAITING)
    assert [verdict["is_shared"] for verdict in watched.verdicts] == [True]
    watched = Watched()
    watched.monitor.ended(1)
    watched.run_until(1e6, LOADS)
    assert [verdict["is_shared"] for verdict in watched.verdicts] == [False], "it waits for no rank"


def test_silence_before_the_first_step_that_is_not_a_hang_is_probed_again_later() -> None:
    watched, end = Starting(), 10.0 + FIRST_STEP_S
    for again in range(3):
        assert watched.run_until(end, WAITING, asleep(30.0)) == end
        assert len(watched.requests) == again + 1
        end += FIRST_STEP_S
    assert (watched.logged, watched.ended) == ([], [])


def test_reported_hang_before_the_first_step_ends_when_the_rank_is_active() -> None:
    watched, end = Starting(restarts=False), 10.0 + FIRST_STEP_S
    watched.run_until(end, WAITING, asleep(FIRST_STEP_S - PROBE_S))
    assert (watched.monitor.hang or {})["ranks"] == [1]
    watched.act(1000.0)
    assert watched.monitor.hang is None


def test_stall_in_a_pause_before_the_first_step_is_named() -> None:
    """The lock of `first_on_node`, for example: a download that does nothing any more."""
    watched = Starting()
    watched.monitor.observe(1, Heartbeat(1, None, 900.0), 10.0)
    waits = Probe(place=Place("/x/dtj/ranks/node.py:23 in first_on_node"), responds=True)
    watched.run_until(2000.0, waits, LOADS)
    assert watched.ended == [1]
