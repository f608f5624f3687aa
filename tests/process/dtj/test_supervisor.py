"""Ranks of a pod as real processes, without a coordinator."""

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dtj.agent.rank import process_group
from dtj.agent.rank.process import RankProcess
from dtj.agent.rank.process_usage import process_of
from dtj.agent.replica import supervisor as module
from dtj.agent.replica.heartbeats import HeartbeatReader
from dtj.agent.replica.rank_events import RankEvents
from dtj.agent.replica.supervisor import Supervisor, soonest
from dtj.agent.report.console import PlainConsole
from dtj.agent.report.status import Status
from dtj.agent.wire.facts import Ended, Fact, Heartbeats
from dtj.telemetry import heartbeat, report_pipe
from tests.process.dtj.conftest import is_dead, wait_for

ENV = {"RANK": "0", "WORLD_SIZE": "1", "NNODES": "1"}


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as found:
        yield found


@pytest.fixture
def sent() -> list[Fact]:
    """To the coordinator."""
    return []


@pytest.fixture
def said() -> list[str]:
    """Lines for the user."""
    return []


@pytest.fixture
def events(sent: list[Fact], said: list[str]) -> RankEvents:
    return RankEvents(
        Status(), HeartbeatReader(every_s=0.05), send=sent.append, log=said.append, replace=None, grace_s=None
    )


@pytest.fixture
def supervisor(selector: selectors.BaseSelector, events: RankEvents) -> Iterator[Supervisor]:
    found = Supervisor(
        signal.pause,  # waits for the signal that ends it
        threads=1,
        as_json=False,
        shown=None,
        selector=selector,
        slots={},
        write=PlainConsole().write,
        events=events,
    )
    yield found
    found.kill()
    while found.alive():
        look(selector)


def look(selector: selectors.BaseSelector) -> None:
    for key, _ in selector.select(10.0):
        if selector.get_map().get(key.fd) is key:
            key.data()


def test_rank_has_none_of_the_pipes_of_another_rank(supervisor: Supervisor) -> None:
    for rank in range(2):
        supervisor.start(rank, ENV | {"RANK": str(rank)}, generation=1)
    first, second = supervisor.newest[0], supervisor.newest[1]
    fds = (first.orders, first.stacks, *first.streams)
    pipes = [Path(f"/proc/self/fd/{fd}").readlink() for fd in fds]

    def inherited() -> set[Path]:
        found = set()
        for fd in Path(f"/proc/{second.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.add(fd.readlink())
        return found.intersection(pipes)

    wait_for(lambda: not inherited(), "the rank to close them")


def test_rank_that_ends_alike_in_every_generation_is_logged_each_time(
    supervisor: Supervisor, selector: selectors.BaseSelector, said: list[str]
) -> None:
    for generation in (1, 2):
        supervisor.start(0, ENV, generation=generation)
        os.kill(supervisor.newest[0].pid, signal.SIGKILL)
        while supervisor.alive():
            look(selector)
    assert len(said) == 2, said
    assert all(line.startswith("rank 0 was killed by SIGKILL before its first step") for line in said)


def test_time_to_save_is_not_cut_by_an_earlier_stop(
    supervisor: Supervisor, selector: selectors.BaseSelector
) -> None:
    """An elastic job may change its size twice within the minute that a save may take."""
    supervisor.start(0, ENV, generation=1)
    supervisor.newest[0].uses_dtj = True
    supervisor.start(0, ENV, generation=2, gracefully=True)
    assert supervisor.deadline
    while supervisor.newest[0].generation == 1:
        look(selector)
    assert supervisor.deadline is None


def test_rank_that_is_restarted_for_another_generation_gets_no_more_time_to_stop(
    supervisor: Supervisor, selector: selectors.BaseSelector
) -> None:
    """Otherwise a rank that ignores the signal would delay a job that forms repeatedly."""
    supervisor.start(0, ENV, generation=1)
    supervisor.start(0, ENV, generation=2)
    deadline = supervisor.deadline
    supervisor.start(0, ENV, generation=3)
    assert supervisor.deadline == deadline
    while supervisor.newest[0].ending is None and supervisor.newest[0].generation == 1:
        look(selector)
    assert supervisor.newest[0].generation == 3


@pytest.mark.parametrize(
    ("report", "patience_s"),
    [
        pytest.param(
            {"step": 3, "totalSteps": 9, "epoch": 0}, 60, id="a dtj program, which saves, even alone"
        ),
        pytest.param(
            {"failure": {"exitCode": 1, "at": "2026-01-01T00:00:00+00:00"}}, 5, id="any other script"
        ),
    ],
)
def test_time_to_stop(
    supervisor: Supervisor, events: RankEvents, report: dict[str, object], patience_s: float
) -> None:
    supervisor.start(0, ENV, generation=1)
    process = supervisor.newest[0]
    process._failure = report.get("failure", {})  # type: ignore[assignment]
    events.reported(process, report)
    before = time.monotonic()
    supervisor.start(0, ENV, generation=2, gracefully=True)
    assert supervisor.deadline
    assert before + patience_s <= supervisor.deadline <= time.monotonic() + patience_s


def test_no_rank_is_started_once_the_pod_is_asked_to_terminate(
    supervisor: Supervisor, selector: selectors.BaseSelector
) -> None:
    """It would never be asked to stop."""
    supervisor.start(0, ENV, generation=1)
    supervisor.start(0, ENV, generation=2)
    supervisor.stop(signal.SIGTERM)
    while supervisor.newest[0].ending is None:
        look(selector)
    assert (supervisor.newest[0].generation, supervisor.alive()) == (1, [])


def test_steps_completed_before_a_death_are_reported_before_it(
    supervisor: Supervisor, selector: selectors.BaseSelector, sent: list[Fact]
) -> None:
    """They decide whether a restart made progress, and what was lost."""
    for rank in range(2):
        supervisor.start(rank, ENV | {"RANK": str(rank)}, generation=1)
        supervisor.newest[rank].heartbeat.stepped(4 + rank)
    supervisor.newest[1].signal(signal.SIGKILL)
    while not sent:
        look(selector)
    heartbeats, ended = sent
    assert isinstance(heartbeats, Heartbeats)
    assert {rank: beat.step for rank, beat in heartbeats.ranks.items()} == {0: 4, 1: 5}
    assert isinstance(ended, Ended)
    assert ended.ending.rank == 1


@dataclass(kw_only=True)
class Node:
    """Ranks that run a program; records their output and messages in order."""

    selector: selectors.BaseSelector
    heard: list[Any] = field(default_factory=list)

    def run(
        self, program: Callable[[], None], *, shown: frozenset[int] | None = None, **env: str
    ) -> Supervisor:
        """Rank 0 has started."""
        self.supervisor = Supervisor(
            program,
            threads=1,
            as_json=False,
            shown=shown,
            selector=self.selector,
            slots={},
            write=self.write,
            events=self,
        )
        self.supervisor.start(0, ENV | env, generation=1)
        return self.supervisor

    def write(self, fd: int, data: bytes) -> None:
        self.heard.append((fd, data.decode()))

    def started(self, process: RankProcess) -> None:
        self.heard.append(f"generation {process.generation}")

    def reported(self, process: RankProcess, fields: dict[str, Any]) -> None:
        process.uses_dtj = process.uses_dtj or "dtj" in fields
        self.heard.append(fields)

    def ended(self, process: RankProcess, beside: Iterable[RankProcess]) -> None:
        assert process.ending
        assert process in beside
        self.heard.append(process.ending)

    def cut_off(self, process: RankProcess) -> None:
        self.heard.append(f"rank {process.rank} is cut off")

    def stuck(self, process: RankProcess) -> None:
        self.heard.append(f"rank {process.rank} is stuck")

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Run the agent's loop until the condition holds."""

        def turn() -> object:
            for key, _ in self.selector.select(0.01):
                if self.selector.get_map().get(key.fd) is key:
                    key.data()
            self.supervisor.tick()
            return condition()

        wait_for(turn, what)

    def until_heard(self, what: object) -> None:
        self.until(lambda: what in self.heard, f"{what} in {self.heard}")

    def until_all_have_ended(self) -> None:
        self.until(lambda: not self.supervisor.alive(), "all ranks to end")


@pytest.fixture
def node(selector: selectors.BaseSelector) -> Iterator[Node]:
    found = Node(selector=selector)
    yield found
    found.supervisor.kill()
    found.until_all_have_ended()


def has_deadline(supervisor: Supervisor) -> bool:
    return supervisor.deadline is not None


def say_and_fail() -> None:
    print("out")
    print("err", end="", file=sys.stderr, flush=True)
    report_pipe.send({"word": 1})
    os._exit(3)


def refuse_pidfd(_: int) -> int:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize(
    "pidfd_open",
    [
        os.pidfd_open,
        pytest.param(None, id="Python without it"),
        pytest.param(refuse_pidfd, id="refused by a filter of system calls"),
    ],
)
def test_last_output_of_a_rank_comes_before_its_exit(
    node: Node, monkeypatch: pytest.MonkeyPatch, pidfd_open: Callable[[int], int] | None
) -> None:
    if pidfd_open:
        monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    else:
        monkeypatch.delattr(os, "pidfd_open")
    supervisor = node.run(say_and_fail)
    process = supervisor.newest[0]
    if pidfd_open in {None, refuse_pidfd}:
        _, status = os.waitpid(process.pid, 0)
        supervisor.reaped(process.pid + 1, 0)
        assert supervisor.alive() == [process], "that was another process"
        supervisor.reaped(process.pid, os.waitstatus_to_exitcode(status))
    node.until_all_have_ended()
    assert node.heard[0] == "generation 1"
    assert {(1, "[rank 0] out\n"), (2, "[rank 0] err\n")} <= {x for x in node.heard if isinstance(x, tuple)}
    assert node.heard[-1] == process.ending
    assert {"word": 1} in node.heard
    assert [(ending.rank, ending.code) for ending in supervisor.endings()] == [(0, 3)]
    assert not node.selector.get_map(), "nothing is left"
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, 0)


def close_output_and_wait() -> None:
    print("out", flush=True)
    os.close(1)
    os.close(2)
    report_pipe.send({"word": 1})
    assert report_pipe._pipe is not None
    os.close(report_pipe._pipe)
    signal.pause()


def test_rank_that_closes_its_pipes_keeps_running_and_they_are_no_longer_watched(node: Node) -> None:
    supervisor = node.run(close_output_and_wait)
    process = supervisor.newest[0]
    node.until(lambda: not process.streams and process.reports is None, "its pipes to be over")
    assert (1, "[rank 0] out\n") in node.heard
    assert {"word": 1} in node.heard
    assert (supervisor.alive(), supervisor.endings()) == ([process], [])
    assert len(node.selector.get_map()) == 1, "only its death can still be noticed"


def open_files() -> set[tuple[str, str]]:
    """Return the number and the target of each open file, without the one that lists them."""
    found = set()
    for file in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            found.add((file.name, str(file.readlink())))
    return found


def report_again_when_told() -> None:
    signal.signal(signal.SIGUSR1, lambda *_: report_pipe.send({"word": 2}))
    report_pipe.send({"word": 1})
    while True:
        signal.pause()


def test_later_reports_of_a_rank_are_read_too(node: Node) -> None:
    supervisor = node.run(report_again_when_told)
    node.until_heard({"word": 1})
    supervisor.newest[0].signal(signal.SIGUSR1)
    node.until_heard({"word": 2})


def leave_processes_and_fail() -> None:
    child = subprocess.Popen(["sleep", "600"])
    read, write = os.pipe()
    stranger = os.fork()
    if not stranger:
        os.setsid()  # and keeps every pipe of the rank
        os.write(write, b".")
        signal.pause()
    os.read(read, 1)  # until then it belongs to the group of the rank, which is killed
    report_pipe.send({"child": child.pid, "stranger": stranger})
    os._exit(3)


def test_exit_of_a_rank_kills_its_group_and_does_not_wait_for_processes_that_hold_its_pipes(
    node: Node,
) -> None:
    before = open_files()
    supervisor = node.run(leave_processes_and_fail)
    node.until_all_have_ended()
    (left,) = (each for each in node.heard if isinstance(each, dict))
    try:
        assert [ending.code for ending in supervisor.endings()] == [3]
        assert not node.selector.get_map()
        assert open_files() == before
        wait_for(lambda: is_dead(left["child"]), "its group to be killed")
        assert not is_dead(left["stranger"]), "it has a session of its own"
    finally:
        os.kill(left["stranger"], signal.SIGKILL)


def leave_a_process_that_prints_on() -> None:
    subprocess.Popen(["yes"], start_new_session=True)  # SIGPIPE ends it once its pipe is closed
    os._exit(3)


def test_end_of_a_rank_does_not_wait_for_a_process_that_prints_without_a_pause(node: Node) -> None:
    supervisor = node.run(leave_a_process_that_prints_on)
    node.until_all_have_ended()
    assert [ending.code for ending in supervisor.endings()] == [3]


def test_rank_whose_death_is_reported_to_a_debugger_first_is_reaped_later(node: Node) -> None:
    """Its pidfd is readable, but it cannot be reaped yet."""
    supervisor = node.run(signal.pause)
    process = supervisor.newest[0]
    supervisor._on_death(process)
    assert supervisor.alive() == [process]


@pytest.mark.parametrize(("shown", "lines"), [(frozenset({1}), 0), (frozenset({0, 1}), 2)])
def test_only_lines_of_the_selected_ranks_are_shown(node: Node, shown: frozenset[int], lines: int) -> None:
    supervisor = node.run(say_and_fail, shown=shown)
    node.until_all_have_ended()
    assert len([x for x in node.heard if isinstance(x, tuple)]) == lines
    supervisor.show_stacks(supervisor.newest[0], "a\nb\n")
    assert ((2, "[rank 0] a\n[rank 0] b\n") in node.heard) == (lines > 0)


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"])
    report_pipe.send({"child": child.pid})
    while True:
        signal.pause()


def test_rank_that_ignores_the_signal_is_killed_later_with_all_that_it_started(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = node.run(ignore_sigterm)
    process = supervisor.newest[0]
    node.until(lambda: len(node.heard) == 2, "its child")
    supervisor.start(1, ENV | {"RANK": "1"}, generation=1)
    monkeypatch.setattr(module, "_TERM_GRACE_S", 0.3)
    supervisor.start(0, ENV, generation=2)
    assert supervisor.deadline
    assert process.killed, "to make way for its successor: not a failure"
    node.until_heard("generation 2")
    assert process.ending
    assert process.ending.by_agent
    assert not has_deadline(supervisor)
    assert [p.generation for p in supervisor.alive()] == [2, 1], "the other rank is not replaced"
    wait_for(lambda: is_dead(node.heard[1]["child"]), "the child to exit")


def ignore_sigterm_as_rank_1() -> None:
    if os.environ["RANK"] == "1":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report_pipe.send({"rank": os.environ["RANK"]})
    while True:
        signal.pause()


def test_rank_that_stops_in_time_does_not_spare_one_that_does_not(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TERM_GRACE_S", 600.0)  # this machine may be busy
    supervisor = node.run(ignore_sigterm_as_rank_1)
    supervisor.start(1, ENV | {"RANK": "1"}, generation=1)
    node.until(lambda: {"rank": "0"} in node.heard and {"rank": "1"} in node.heard, "both")
    for rank in range(2):
        supervisor.start(rank, ENV | {"RANK": str(rank)}, generation=2)
    leaving = supervisor.newest[1].leaving
    assert leaving
    kill_at = leaving.kill_at
    node.until_heard("generation 2")
    assert [process.generation for process in supervisor.alive()] == [2, 1]
    assert supervisor.deadline == kill_at


def save_when_asked() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    report_pipe.send({"dtj": "begins"})
    signal.sigwait({signal.SIGTERM})
    with heartbeat.mine.paused():
        report_pipe.send({"dtj": "saves"})
        signal.sigwait({signal.SIGTERM})
        report_pipe.send({"dtj": "saved"})


@pytest.mark.parametrize(
    ("starts_again", "after_s", "is_saved"),
    [
        (True, 100, True),
        (True, 700, False),
        pytest.param(False, 100, True, id="the job continues without this pod"),
    ],
)
def test_rank_that_is_saving_has_more_time_but_not_unlimited(
    node: Node, monkeypatch: pytest.MonkeyPatch, starts_again: bool, after_s: float, is_saved: bool
) -> None:
    supervisor = node.run(save_when_asked)
    node.until_heard({"dtj": "begins"})
    if starts_again:
        supervisor.start(0, ENV, generation=2, gracefully=True)
    else:
        supervisor.end(gracefully=True, step_s=0.0)
    node.until_heard({"dtj": "saves"})
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + after_s)
    monkeypatch.setattr(module, "time", clock)
    supervisor.tick()
    supervisor.newest[0].signal(signal.SIGTERM)
    node.until(lambda: supervisor.newest[0].generation == 2 or not supervisor.alive(), "its end")
    assert ("generation 2" in node.heard) == starts_again
    assert ({"dtj": "saved"} in node.heard) == is_saved
    assert ("rank 0 is cut off" in node.heard) != is_saved


def evaluate() -> None:
    heartbeat.mine.sign()


def complete_a_step() -> None:
    heartbeat.mine.stepped(7)


def no_work() -> None:
    """Without a sign of life."""


@pytest.mark.parametrize(
    ("works", "step_s", "after_s", "is_killed"),
    [
        pytest.param(evaluate, 0.0, (61,), False, id="it evaluates"),
        pytest.param(complete_a_step, 0.0, (61,), False, id="it completes a step"),
        pytest.param(evaluate, 0.0, (61, 122), True, id="it shows no further sign"),
        pytest.param(no_work, 0.0, (61,), True, id="it shows none"),
        pytest.param(no_work, 90.0, (61,), False, id="a step takes longer"),
        pytest.param(no_work, 90.0, (181,), True, id="it takes longer than its steps"),
    ],
)
def test_rank_that_works_has_more_time_to_reach_its_save(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    works: Callable[[], None],
    step_s: float,
    after_s: Sequence[float],
    is_killed: bool,
) -> None:
    def work_when_asked() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        report_pipe.send({"dtj": "begins"})
        signal.sigwait({signal.SIGTERM})
        works()
        report_pipe.send({"dtj": "worked"})
        signal.sigwait({signal.SIGUSR1})

    supervisor = node.run(work_when_asked)
    node.until_heard({"dtj": "begins"})
    supervisor.start(0, ENV, generation=2, gracefully=True, step_s=step_s)
    node.until_heard({"dtj": "worked"})
    began = time.monotonic()
    for seconds in after_s:
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda at=began + seconds: at))
        supervisor.tick()
    assert ("rank 0 is cut off" in node.heard) == is_killed
    assert (supervisor.newest[0].leaving is None) == is_killed


def do_not_stop() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    report_pipe.send({"dtj": os.environ["RANK"]})
    signal.sigwait({signal.SIGUSR1})


def test_rank_that_waits_for_one_that_works_has_more_time_too(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank evaluates, the others wait for it in a collective and show no sign of life."""
    supervisor = node.run(do_not_stop)
    supervisor.start(1, ENV | {"RANK": "1"}, generation=1)
    for rank in "01":
        node.until_heard({"dtj": rank})
    supervisor.end(gracefully=True, step_s=0.0)
    supervisor.newest[0].heartbeat.sign()
    began, killed = time.monotonic(), []
    for seconds in (61, 122):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda at=began + seconds: at))
        supervisor.tick()
        killed.append([supervisor.newest[rank].killed_at is not None for rank in range(2)])
    assert killed == [[False, False], [True, True]]


@pytest.mark.parametrize(
    "message", ["", pytest.param("no step for 60 s: rank 0 is in read", id="killed as hung")]
)
def test_killed_rank_that_does_not_end_has_failed(
    node: Node, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    """The kernel may wait for a file system that does not answer; here the signal is not sent."""
    supervisor = node.run(signal.pause)
    process = supervisor.newest[0]
    with monkeypatch.context() as patched:
        patched.setattr(process_group, "kill", lambda group: None)
        process.kill_as_hung(message, is_shared=False) if message else process.kill()
        before = time.monotonic()
        assert supervisor.deadline
        assert before < supervisor.deadline <= before + 120
        supervisor.tick()
        assert supervisor.alive() == [process]
        patched.setattr(module, "time", SimpleNamespace(monotonic=lambda: before + 120))
        supervisor.tick()
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    assert node.heard[1:] == ["rank 0 is stuck", process.ending]
    assert process.ending
    assert (process.ending.cause, process.ending.failed) == ("Hang", True)
    assert process.ending.message.startswith(
        message or "rank 0, killed 120 s ago, and has not ended: it waits"
    )
    assert supervisor.alive() == []


def test_killed_rank_that_does_not_end_has_failed_for_what_it_reported(supervisor: Supervisor) -> None:
    """A broken GPU, for example, whose node is then avoided at once."""
    supervisor.start(0, ENV, generation=1)
    process = supervisor.newest[0]
    process._failed("DeviceFault", exitCode=1)
    process.mark_stuck()
    assert process.failing().cause == "DeviceFault"


@pytest.mark.parametrize("is_in_job", [True, False])
def test_pod_with_a_rank_that_does_not_end_leaves(
    supervisor: Supervisor, said: list[str], is_in_job: bool
) -> None:
    """Without an operator nothing would take its place."""
    replaced: list[RankProcess] = []
    replace = replaced.append if is_in_job else None
    events = RankEvents(
        Status(), HeartbeatReader(every_s=0.05), send=print, log=said.append, replace=replace, grace_s=None
    )
    supervisor.start(0, ENV, generation=1)
    process = supervisor.newest[0]
    events.stuck(process)
    assert replaced == [process] * is_in_job
    assert said[0].startswith("rank 0 was killed and does not end, as it waits in the kernel")


def test_rank_that_failed_ends_soon_with_all_others_if_its_pod_leaves(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = node.run(ignore_sigterm)
    node.until(lambda: len(node.heard) == 2, "its child")
    supervisor.start(1, ENV | {"RANK": "1"}, generation=1)
    supervisor.start(1, ENV | {"RANK": "1"}, generation=2)  # never started: the pod leaves first
    failed = supervisor.newest[0]
    failed._failed("DeviceFault", exitCode=1)
    monkeypatch.setattr(module, "_TERM_GRACE_S", 0.0)
    supervisor.leave(failed)
    assert not failed.killed
    node.until_all_have_ended()
    assert "generation 2" not in node.heard
    assert failed.ending
    assert (failed.ending.cause, failed.ending.code) == ("DeviceFault", 1)


def test_rank_with_nothing_to_save_is_replaced_at_once(node: Node) -> None:
    supervisor = node.run(ignore_sigterm)
    node.until(lambda: len(node.heard) == 2, "its child")
    supervisor.newest[0].uses_dtj = True
    supervisor.start(0, ENV, generation=2)
    assert supervisor.newest[0].leaving is None
    node.until_heard("generation 2")
    assert not [x for x in node.heard if x == "generation 1"][1:]


def test_end_of_the_job_kills_dtj_ranks_and_gives_scripts_some_time(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = node.run(signal.pause)
    supervisor.start(1, ENV | {"RANK": "1"}, generation=1)
    supervisor.newest[1].uses_dtj = True  # killed before it has done anything
    stopped = supervisor.newest[0]
    stopped.signal(signal.SIGSTOP)
    wait_for(lambda: (found := process_of(stopped.pid)) and found.state == "T", "it to be stopped")
    supervisor.start(0, ENV, generation=2)  # never started: the job ends first
    monkeypatch.setattr(module, "_TERM_GRACE_S", 60.0)
    before = time.monotonic()
    supervisor.shut_down()
    assert supervisor.deadline
    assert before + 60 <= supervisor.deadline <= time.monotonic() + 60
    node.until(lambda: supervisor.newest[1].ending, "the end of the one that uses dtj")
    assert [process.rank for process in supervisor.alive()] == [0]
    monkeypatch.setattr(module, "_TERM_GRACE_S", 0.0)
    supervisor.shut_down()
    node.until_all_have_ended()
    assert "generation 2" not in node.heard
    assert not has_deadline(supervisor)


def test_kill_cancels_pending_starts(node: Node) -> None:
    supervisor = node.run(ignore_sigterm)
    supervisor.start(0, ENV, generation=2)
    supervisor.kill()
    assert supervisor.newest[0].leaving is None
    node.until_all_have_ended()
    assert supervisor.newest[0].generation == 1


def test_kill_by_another_process_is_not_an_oom_kill(node: Node) -> None:
    supervisor = node.run(signal.pause)
    supervisor.newest[0].signal(signal.SIGKILL)
    node.until_all_have_ended()
    assert supervisor.endings()[0].cause == "Signal"


def abort_as_nccl_does() -> None:
    say = "[rank0]:[E1127 04:12:01] [PG ID 0 PG GUID 0 Rank 0] {} terminated with exception: {}\nmore\n"
    os.write(2, say.format("Process group watchdog thread", os.environ["WHY"]).encode())
    os.abort()


@pytest.mark.parametrize(
    ("why", "cause"),
    [
        ("NCCL error: remote process exited or there was a network error, NCCL version 2.28", "PeerLost"),
        (
            "[Rank 0] Watchdog caught collective operation timeout: ran for 600 ms before timing out.",
            "PeerLost",
        ),
        ("CUDA error: an illegal memory access was encountered", "Signal"),
    ],
)
def test_rank_that_nccl_aborts_for_a_lost_peer_is_not_the_culprit(node: Node, why: str, cause: str) -> None:
    supervisor = node.run(abort_as_nccl_does, WHY=why)
    node.until_all_have_ended()
    (ending,) = supervisor.endings()
    assert (ending.cause, ending.signal) == (cause, signal.SIGABRT)
    assert (why in ending.message) == (cause == "PeerLost")


def abort_as_gloo_does() -> None:
    os.write(2, b"terminate called after throwing an instance of 'gloo::EnforceNotMet'\n")
    os.write(2, b"  what():  16 vs 4.\n")
    os.abort()


def test_exception_of_native_code_is_the_message_of_the_rank_that_it_aborts(node: Node) -> None:
    supervisor = node.run(abort_as_gloo_does)
    node.until_all_have_ended()
    (ending,) = supervisor.endings()
    assert (ending.cause, ending.signal) == ("Signal", signal.SIGABRT)
    assert ending.message == "killed by SIGABRT: 16 vs 4."


def test_signal_to_the_pod_is_forwarded_to_its_ranks(node: Node) -> None:
    supervisor = node.run(signal.pause)
    supervisor.stop(signal.SIGTERM)
    node.until_all_have_ended()
    (ending,) = supervisor.endings()
    assert (ending.code, ending.by_agent) == (128 + signal.SIGTERM, False)


def leave_well_when_asked() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    report_pipe.send({"is": "up"})
    while True:
        signal.pause()


@pytest.mark.parametrize(
    ("uses_dtj", "code"),
    [
        pytest.param(False, 128 + signal.SIGTERM, id="as Lightning and transformers do, in the middle"),
        pytest.param(True, 0, id="a dtj program had no step left"),
    ],
)
def test_script_that_exits_with_0_because_it_was_asked_to_stop_is_not_done(
    node: Node, uses_dtj: bool, code: int
) -> None:
    """Otherwise a drained pod, or a suspended job, would count as succeeded."""
    supervisor = node.run(leave_well_when_asked)
    node.until_heard({"is": "up"})
    supervisor.newest[0].uses_dtj = uses_dtj
    supervisor.stop(signal.SIGTERM)
    node.until_all_have_ended()
    (ending,) = supervisor.endings()
    assert (ending.code, ending.stopped_unsaved) == (code, code > 0)


def become_another_program() -> None:
    os.execvp("sleep", ["sleep", "600"])


def test_stacks_are_not_insisted_on_if_the_rank_has_replaced_its_program(node: Node) -> None:
    """As scripts do that start themselves again with other variables: the signal would kill them."""
    supervisor = node.run(become_another_program)
    process = supervisor.newest[0]
    name = Path(f"/proc/{process.pid}/comm")
    wait_for(lambda: name.read_text() == "sleep\n", "the other program")
    process.insist_on_stacks()
    supervisor.stop(signal.SIGTERM)
    node.until_all_have_ended()
    assert supervisor.endings()[0].signal == signal.SIGTERM


def fork_processes_that_exit() -> None:
    for code in (0, 3):
        if (child := os.fork()) == 0:
            sys.exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    report_pipe.send({"pause": heartbeat.mine.pause_s})


def test_process_that_a_program_forked_may_exit_without_a_word_about_the_rank(node: Node) -> None:
    """Its code is not the rank's, and the rank works on."""
    supervisor = node.run(fork_processes_that_exit)
    node.until_all_have_ended()
    (ending,) = supervisor.endings()
    assert node.heard == ["generation 1", {"pause": None}, ending]
    assert ending.code == 0


def fail_and_linger() -> None:
    failure = {"message": "ValueError: label 11", "reason": "Exception", "exitCode": 1}
    report_pipe.send({"failure": failure | {"at": "2026-01-01T00:00:00+00:00"}})
    signal.pause()  # as a thread of the program that does not end


def test_failure_of_a_rank_that_does_not_exit_is_not_hidden_by_its_hang(node: Node) -> None:
    supervisor = node.run(fail_and_linger)
    node.until(lambda: len(node.heard) == 2, "its failure")
    supervisor.newest[0].kill_as_hung("no step for 30 s", is_shared=False)
    node.until_all_have_ended()
    (ending,) = supervisor.endings()
    assert (ending.code, ending.cause, ending.message) == (1, "Exception", "ValueError: label 11")
    assert ending.failed


@pytest.mark.parametrize(
    ("number", "killed", "reason"),
    [
        pytest.param(signal.SIGKILL, False, "OOMKilled", id="by the kernel"),
        pytest.param(signal.SIGTERM, False, None, id="by another signal"),
        pytest.param(signal.SIGKILL, True, None, id="by the agent"),
    ],
)
def test_oom_kill(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    number: signal.Signals, killed: bool, reason: str | None,
) -> None:  # fmt: skip
    events = tmp_path / "memory.events"
    events.write_text("oom_kill 0\n")
    monkeypatch.setattr("dtj.agent.rank.oom.EVENTS", events)
    supervisor = node.run(signal.pause)
    events.write_text("oom_kill 1\n")
    supervisor.newest[0].signal(number, on_behalf_of_agent=killed)
    node.until_all_have_ended()
    assert supervisor.endings()[0].reason == reason


def test_soonest_is_the_earliest_time() -> None:
    now = time.monotonic()
    assert soonest([None, None]) is None
    assert soonest([None, now - 5]) == 0.0
    found = soonest([now + 200, now + 100])
    assert found
    assert now + 100 - time.monotonic() <= found <= 100
