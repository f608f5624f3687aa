"""Several agents as several pods: a lost pod comes back, and the job continues from the others' state."""

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dtj import contract
from dtj.agent.wire.protocol import PROTOCOL
from tests.process.dtj.conftest import SIZES, SMALL, Command, Start, children, free_port, is_dead, wait_for
from tests.process.dtj.test_resume import assert_identical, weights
from tests.process.dtj.test_status_server import status

REPLICAS = 4  # maximum of the jobs here


class Pods:
    """A job of `replicas` pods with one rank each, on one machine."""

    def __init__(self, start: Start, out: Path, *, replicas: int, **env: object) -> None:
        self.ports = [free_port() for _ in range(REPLICAS)]  # of /status, by index
        self._start = start
        self._out = out
        out.mkdir(exist_ok=True)
        self.env = {
            "NNODES": replicas,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": free_port(),
            "DTJ_JOB": "digits",
            "DTJ_JOB_UID": "0b5c",
            "DTJ_MAX_RESTARTS": 5,
            "OUT": out,
            "PLAIN": 1,
            **SIZES,
            **env,
        }

    def run(self, index: int, *flags: object, program: Path = SMALL, **env: object) -> Command:
        """Start the pod of an index, or its replacement."""
        where = {"NODE_RANK": index, "DTJ_REPLICA_INDEX": index, "DTJ_AGENT_PORT": self.ports[index]}
        log = ("--termination-log", self._out / f"log-{index}")
        return self._start("run", *log, *flags, program, **self.env | where | env)

    def status(self, index: int = 0) -> dict[str, Any]:
        return status(self.ports[index])

    def evict(self, pod: Command, index: int) -> None:
        """Ask the pod to terminate; when this returns, its ranks have been asked, or have ended."""
        pod.signal(signal.SIGTERM)
        wait_for(
            lambda: is_dead(pod.pid) or self.status(index).get("state") == "Stopping",
            "the pod to signal its ranks",
        )


def lose(pod: Command) -> None:
    """Kill the pod with all its processes at once, as if its node lost power."""
    ranks = children(pod.pid)
    pod.signal(signal.SIGKILL)
    wait_for(lambda: all(is_dead(pid) for pid in ranks), "the pod's ranks to exit")


@pytest.mark.parametrize(
    "lost", [pytest.param(1, id="replica 1"), pytest.param(0, id="replica 0, the coordinator")]
)
def test_replacement_of_a_lost_pod_joins_the_step_of_the_others(
    start: Start, unbroken: Callable[..., Path], tmp_path: Path, lost: int
) -> None:
    job = Pods(start, tmp_path / "out", replicas=3, HOLD_AT=7)
    pods = [job.run(index) for index in range(3)]
    wait_for((tmp_path / "out" / "at-7").exists, "step 7")
    lose(pods[lost])
    pods[lost] = job.run(lost)
    (tmp_path / "out" / "go-7").touch()
    ended = [pod.wait() for pod in pods]
    assert [e.code for e in ended] == [0, 0, 0], [e.err for e in ended]
    assert_identical(weights(unbroken(3, PLAIN=1)), weights(tmp_path / "out"))
    steps = [int(line.split()[0]) for line in (tmp_path / "out" / "seen-2.txt").read_text().splitlines()]
    assert steps == list(range(16))  # a survivor repeats no step


def test_lost_pod_is_reported_until_its_replacement_has_joined(start: Start, tmp_path: Path) -> None:
    job = Pods(start, tmp_path, replicas=2, HOLD_AT=5)
    pods = [job.run(index) for index in range(2)]
    wait_for((tmp_path / "at-5").exists, "step 5")
    assert job.status()["missing"] == []
    lose(pods[1])
    wait_for(
        lambda: [each["replica"] for each in job.status().get("missing", ())] == [1],
        "the loss to be reported",
    )
    first = job.status()["missing"][0]["seconds"]
    wait_for(lambda: job.status()["missing"][0]["seconds"] > first, "time to pass")
    pods[1] = job.run(1)
    wait_for(lambda: job.status().get("missing") == [], "its replacement to join")
    (tmp_path / "go-5").touch()
    assert [pod.wait().code for pod in pods] == [0, 0]


def test_stopped_agent_of_replica_0_repeats_its_answer_and_the_other_says_that_it_is_unheard(
    start: Start, tmp_path: Path
) -> None:
    """From both together the operator concludes that the pod has to be replaced."""
    job = Pods(start, tmp_path, replicas=2, HOLD_AT=5)
    pods = [job.run(index) for index in range(2)]
    wait_for((tmp_path / "at-5").exists, "step 5")
    assert job.status()["unheardSeconds"] is None, "it does not wait for itself"
    wait_for(lambda: job.status(1).get("unheardSeconds", 9) < 2, "replica 1 to hear replica 0")

    pods[0].signal(signal.SIGSTOP)
    wait_for(lambda: job.status(1)["unheardSeconds"] > 3, "the silence to be reported")
    last, unheard_s = job.status()["at"], job.status(1)["unheardSeconds"]
    wait_for(lambda: job.status(1)["unheardSeconds"] > unheard_s, "time to pass")
    assert job.status()["at"] == last

    pods[0].signal(signal.SIGCONT)
    wait_for(lambda: job.status()["at"] != last, "a new answer")
    wait_for(lambda: job.status(1)["unheardSeconds"] < 2, "replica 1 to hear replica 0 again")
    (tmp_path / "go-5").touch()
    assert [pod.wait().code for pod in pods] == [0, 0]


def test_all_pods_lost_one_after_the_other(
    start: Start, unbroken: Callable[..., Path], tmp_path: Path
) -> None:
    """The state moves from pod to pod; none of the first processes sees the end."""
    out = tmp_path / "out"
    job = Pods(start, out, replicas=3, HOLD_AT="5 8 11")
    pods = [job.run(index) for index in range(3)]
    for index, step in ((2, 5), (0, 8), (1, 11)):
        wait_for((out / f"at-{step}").exists, f"step {step}")
        lose(pods[index])
        pods[index] = job.run(index)
        (out / f"go-{step}").touch()
    ended = [pod.wait() for pod in pods]
    assert [e.code for e in ended] == [0, 0, 0], [e.err for e in ended]
    assert_identical(weights(unbroken(3, PLAIN=1)), weights(tmp_path / "out"))


def test_drained_pod_costs_no_step_while_no_checkpoint_can_be_written(
    start: Start, unbroken: Callable[..., Path], tmp_path: Path
) -> None:
    """The others keep their memory, as without a checkpoint folder."""
    out, volume, aside = tmp_path / "out", tmp_path / "volume", tmp_path / "aside"
    job = Pods(start, out, replicas=2, HOLD_AT=5, STEP_S=0.08)
    flags = ("--checkpoint", volume / "run", "--save-every", 3)
    pods = [job.run(index, *flags) for index in range(2)]
    wait_for((out / "at-5").exists, "step 5")
    volume.rename(aside)
    volume.touch()  # not a folder: root may write into every folder
    job.evict(pods[1], 1)
    (out / "go-5").touch()
    assert pods[1].wait().code == 128 + signal.SIGTERM
    volume.unlink()
    aside.rename(volume)
    pods[1] = job.run(1, *flags)
    ended = [pod.wait() for pod in pods]
    assert [e.code for e in ended] == [0, 0], [e.err for e in ended]
    assert_identical(weights(unbroken(2, PLAIN=1)), weights(out))
    steps = [int(line.split()[0]) for line in (out / "seen-0.txt").read_text().splitlines()]
    assert steps == list(range(16))  # a survivor repeats no step
    assert "could not be written: Not a directory; training continues" in ended[0].err


def test_rank_of_another_pod_that_dies_is_replaced_and_named(start: Start, tmp_path: Path) -> None:
    job = Pods(start, tmp_path, replicas=3, HOLD_AT=9, FAULTS="2@5:end:SIGSEGV", DTJ_RESTARTS_IN_PLACE=3)
    pods = [job.run(index) for index in range(3)]
    wait_for(lambda: job.status().get("step") == 9, "step 9")
    found = job.status()
    assert tuple(found) == contract.STATUS_FIELDS
    counts = {"inPlace": 4, "withoutProgress": 0, "ofNewestPod": 0}
    assert found["restarts"] == counts, "three happened before these pods; a new step ends the row"
    assert found["rejoin"] is True
    assert (found["generation"], found["state"]) == (2, "Running")
    failure = found["failure"]
    assert (failure["rank"], failure["replica"], failure["reason"]) == (2, 2, "Signal")
    assert (failure["signal"], failure["exitCode"], failure["generation"]) == ("SIGSEGV", 139, 1)
    assert found["ledger"].pop("lost") >= 0, "0 if rank 0 has completed its step"
    assert found["ledger"].keys() == {"productive", "startup", "recovering"}
    assert all(seconds > 0 for seconds in found["ledger"].values())
    (tmp_path / "go-9").touch()
    assert [pod.wait().code for pod in pods] == [0, 0, 0]


def test_spent_budget_ends_all_pods_and_names_the_right_culprit(start: Start, tmp_path: Path) -> None:
    job = Pods(start, tmp_path, replicas=3, DTJ_MAX_RESTARTS=1, FAULTS="2@3:end:raise 1@6:end:exit")
    pods = [job.run(index) for index in range(3)]
    assert [pod.wait().code for pod in pods] == [76, 3, 76]
    logs = [json.loads((tmp_path / f"log-{index}").read_text()) for index in range(3)]
    assert [log["reason"] for log in logs] == ["PeerLost", "ExitCode", "PeerLost"]
    assert "rank 1 exited with code 3" in logs[2]["message"]
    assert [log["inPlace"] for log in logs] == [1, 1, 1], "every pod reports the in-place restart"
    lines = [line for line in pods[0].err.splitlines() if line.startswith("dtj: replica ")]
    assert lines == [
        "dtj: replica 2: rank 2 failed: ValueError: label 11 is out of range",
        f"dtj: replica 1: {logs[1]['message']}",
    ], "it is often the only log that is read"


def test_pods_whose_last_lives_were_too_short_for_a_step_report_the_highest_one(
    start: Start, tmp_path: Path
) -> None:
    faults = " ".join(["0@5:forward:exit"] * 2)
    job = Pods(start, tmp_path, replicas=2, DTJ_MAX_RESTARTS_WITHOUT_PROGRESS=1, FAULTS=faults)
    assert [pod.wait().code for pod in [job.run(0), job.run(1)]] == [3, 76]
    logs = [json.loads((tmp_path / f"log-{index}").read_text()) for index in range(2)]
    assert [(log["step"], log["withoutProgress"]) for log in logs] == [(5, 1), (5, 1)]
    assert "before its first step" in logs[0]["message"]


def test_pod_of_an_older_attempt_is_refused(start: Start, tmp_path: Path) -> None:
    job = Pods(start, tmp_path, replicas=2, DTJ_ATTEMPT=4)
    first = job.run(0)
    stale = job.run(1, DTJ_ATTEMPT=3).wait()
    assert stale.code == contract.EXIT_PEER_LOST
    assert "attempt 4 has started" in stale.err
    second = job.run(1)
    assert [first.wait().code, second.wait().code] == [0, 0]


def test_pod_with_another_version_of_dtj_exits_with_the_fix_and_a_right_one_joins(
    start: Start, tmp_path: Path
) -> None:
    job = Pods(start, tmp_path, replicas=2)
    first = job.run(0)
    other = job.run(1, changed={"dtj.agent.replica.orders.PROTOCOL": PROTOCOL + 1}).wait()
    assert other.code == contract.EXIT_PEER_LOST
    assert f"has protocol version {PROTOCOL + 1}, replica 0 has {PROTOCOL}" in other.err
    assert "Pin the image by digest" in other.err
    second = job.run(1)
    assert [first.wait().code, second.wait().code] == [0, 0]
    assert "refused replica 1: this agent has protocol version" in first.err


def test_newer_pod_of_a_replica_replaces_the_older_one(start: Start, tmp_path: Path) -> None:
    """The older pod may still run on an unreachable node: it must not rejoin the job."""
    job = Pods(start, tmp_path, replicas=2, HOLD_AT=5)
    pods = [job.run(index) for index in range(2)]
    wait_for((tmp_path / "at-5").exists, "step 5")
    newer = job.run(1, DTJ_RESTARTS=1)  # as the operator tells the pod of a recorded restart
    older = pods[1].wait()
    assert older.code == contract.EXIT_PEER_LOST
    assert "a newer pod has replaced it" in older.err
    (tmp_path / "go-5").touch()
    assert [pods[0].wait().code, newer.wait().code] == [0, 0]


@pytest.mark.parametrize("evicted", [1, pytest.param(0, id="the coordinator")])
def test_pod_that_is_evicted_in_the_last_step_is_done_and_keeps_no_other_from_its_end(
    start: Start, tmp_path: Path, evicted: int
) -> None:
    """Exit code 0 means done, so the operator does not replace its pod."""
    job = Pods(start, tmp_path, replicas=2, HOLD_AT=15)
    pods = [job.run(index) for index in range(2)]
    wait_for((tmp_path / "at-15").exists, "the last step")
    job.evict(pods[evicted], evicted)
    (tmp_path / "go-15").touch()
    ended = [pod.wait() for pod in pods]
    assert [e.code for e in ended] == [0, 0], [e.err for e in ended]


@pytest.mark.parametrize(("lost", "evicted"), [(1, 0), pytest.param(0, 1, id="rank 0 is lost")])
def test_pod_that_waits_for_a_lost_one_saves_when_asked_to_terminate(
    start: Start, unbroken: Callable[..., Path], tmp_path: Path, lost: int, evicted: int
) -> None:
    """Its memory has all steps since the last save, in which the other ranks can have no part."""
    job = Pods(start, tmp_path / "out", replicas=2, HOLD_AT=7)
    flags = ("--checkpoint", tmp_path / "saved")
    pods = [job.run(index, *flags) for index in range(2)]
    wait_for((tmp_path / "out" / "at-7").exists, "step 7")
    lose(pods[lost])
    (tmp_path / "out" / "go-7").touch()
    wait_for(lambda: "lost the connection to replica" in pods[evicted].err, "the other pod to have noticed")
    job.evict(pods[evicted], evicted)
    ended = pods[evicted].wait()
    assert ended.code == 128 + signal.SIGTERM, ended.err
    assert "stopped at step 8; the newest checkpoint is of step 8" in ended.err
    again = start("run", "--nproc", 2, *flags, SMALL, OUT=tmp_path / "out", PLAIN=1, **SIZES).wait()
    assert again.code == 0, again.err
    assert_identical(weights(unbroken(2, PLAIN=1)), weights(tmp_path / "out"))


def test_others_keep_their_memory_if_a_pod_is_evicted_without_a_checkpoint_folder(
    start: Start, unbroken: Callable[..., Path], tmp_path: Path
) -> None:
    job = Pods(start, tmp_path / "out", replicas=3, HOLD_AT=7)
    pods = [job.run(index) for index in range(3)]
    wait_for((tmp_path / "out" / "at-7").exists, "step 7")
    job.evict(pods[1], 1)
    (tmp_path / "out" / "go-7").touch()
    assert pods[1].wait().code == 128 + signal.SIGTERM
    pods[1] = job.run(1)
    ended = [pod.wait() for pod in pods]
    assert [e.code for e in ended] == [0, 0, 0], [e.err for e in ended]
    assert_identical(weights(unbroken(3, PLAIN=1)), weights(tmp_path / "out"))
    steps = [int(line.split()[0]) for line in (tmp_path / "out" / "seen-2.txt").read_text().splitlines()]
    assert steps == list(range(16))


def test_pod_whose_gpu_fails_after_a_restart_in_place_ends_and_the_others_keep_their_memory(
    start: Start, unbroken: Callable[..., Path], tmp_path: Path
) -> None:
    """A rank that starts again on that machine would fail again, until no restart is left."""
    out = tmp_path / "out"
    job = Pods(start, out, replicas=3, FAULTS="1@5:forward:exit 1@1:start:gpu")
    pods = [job.run(index) for index in range(3)]
    failed = pods[1].wait()
    assert failed.code == 1, failed.err
    assert "rank 1 cannot use its GPU: this pod ends, so that another node gets the rank" in failed.err
    log = json.loads((out / "log-1").read_text())
    assert (log["reason"], log["rank"], log["culprit"]) == ("DeviceFault", 1, None)
    pods[1] = job.run(1, DTJ_RESTARTS=1)
    ended = [pod.wait() for pod in pods]
    assert [e.code for e in ended] == [0, 0, 0], [e.err for e in ended]
    log = json.loads((out / "log-0").read_text())
    assert log["inPlace"] == 1, "the operator counts the restart of the pod that ended"
    assert_identical(weights(unbroken(3, PLAIN=1)), weights(out))
    steps = [int(line.split()[0]) for line in (out / "seen-2.txt").read_text().splitlines()]
    assert steps == list(range(16))


def test_all_ranks_of_a_pod_whose_gpu_fails_at_the_start_leave_it(start: Start, tmp_path: Path) -> None:
    job = Pods(start, tmp_path, replicas=2, FAULTS="1@0:forward:gpu", NPROC_PER_NODE=2)
    pods = [job.run(index) for index in range(2)]
    assert pods[0].wait().code == 1
    pods[0] = job.run(0, DTJ_RESTARTS=1)
    ended = [pod.wait() for pod in pods]
    assert [e.code for e in ended] == [0, 0], [e.err for e in ended]


def test_pods_that_decide_end_although_another_one_does_not(start: Start, tmp_path: Path) -> None:
    """As with spec.successPolicy; the operator deletes the others then."""
    script = tmp_path / "script.py"
    script.write_text("import os, signal\nif os.environ['RANK'] == '1':\n    signal.pause()\n")
    job = Pods(start, tmp_path, replicas=2, DTJ_SUCCESS_REPLICAS=0)
    pods = [job.run(index, program=script) for index in range(2)]
    assert pods[0].wait().code == 0, pods[0].err
    assert json.loads((tmp_path / "log-0").read_text())["reason"] == "Done"
    pods[1].signal(signal.SIGTERM)
    assert pods[1].wait().code == 128 + signal.SIGTERM


def test_rank_that_fails_once_the_replicas_that_decide_are_done_does_not_fail_its_pod(
    start: Start, tmp_path: Path
) -> None:
    """It may lose the ranks that are done; the operator may see this before it sees that they are done."""
    script = tmp_path / "script.py"
    script.write_text("import os, signal\nif os.environ['RANK'] == '1':\n    signal.pause()\n")
    job = Pods(start, tmp_path, replicas=2, DTJ_SUCCESS_REPLICAS=0)
    pods = [job.run(index, program=script) for index in range(2)]
    assert pods[0].wait().code == 0, pods[0].err
    wait_for(lambda: job.status(1).get("ranks"), "its agent to start it, or to answer")
    os.kill(job.status(1)["ranks"][0]["pid"], signal.SIGKILL)
    ended = pods[1].wait()
    assert ended.code == 0, ended.err
    assert "rank 1 was killed by SIGKILL" in ended.err
    assert json.loads((tmp_path / "log-1").read_text())["reason"] == "Done"


def test_pod_that_waits_for_the_others_terminates_when_asked(start: Start, tmp_path: Path) -> None:
    waiting = Pods(start, tmp_path, replicas=2).run(1)
    wait_for(partial(children, waiting.pid), "the pod to wait")
    waiting.signal(signal.SIGTERM)
    assert waiting.wait().code == 128 + signal.SIGTERM
