"""/status, /metrics, /stacks and /healthz of a real run."""

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from dtj import contract
from dtj.agent.report.status_server import StatusServer
from tests.process.dtj.conftest import PROGRAMS, Command, Finished, children, free_port, is_dead, wait_for
from tests.support.commands import DEADLINE_S, commands

Start = Callable[..., Command]


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=DEADLINE_S) as answer:
        text: str = answer.read().decode()
        return text


def status(port: int) -> dict[str, Any]:
    """The document, empty while the server does not respond yet."""
    try:
        found: dict[str, Any] = json.loads(get(port, "/status"))
    except (OSError, HTTPException):  # or a reset or half an answer, if the server stops during the request
        return {}
    return found


def test_running_job_reports_step_loss_and_checkpoint(start: Start, tmp_path: Path) -> None:
    """With the variables of a pod, and a volume that can be written to only after a while."""
    port, volume = free_port(), tmp_path / "volume"
    volume.touch()  # not a folder: root may write into every folder
    command = start(
        *("run", "--nproc", 2, "--save-every", 5, "--log-every", 2, "--checkpoint", volume / "saved"),
        *("--termination-log", tmp_path / "log", PROGRAMS / "small.py"),
        **{"OUT": tmp_path, "PLAIN": 1, "STEPS": 100_000, "READY_AT": 20},
        **{"DTJ_JOB": "digits", "DTJ_AGENT_PORT": port, "DTJ_ATTEMPT": 3, "DTJ_REPLICA_INDEX": 0},
    )
    wait_for(lambda: "none yet" in (status(port).get("saveFailure") or ""), "a failed save")
    assert "Not a directory" in status(port)["saveFailure"]
    assert "\ndtj_save_failing 1\n" in get(port, "/metrics")
    volume.unlink()
    wait_for(lambda: (found := status(port)).get("checkpoint") and found["samplesPerSecond"], "a checkpoint")
    found = status(port)
    assert found["saveFailure"] is None
    assert tuple(found) == contract.STATUS_FIELDS
    assert (found["job"], found["attempt"], found["state"]) == ("digits", 3, "Running")
    assert found["step"] >= found["checkpoint"]["step"] > 0
    assert found["checkpoint"]["path"].startswith(str(volume / "saved" / "step-"))
    assert found["totalSteps"] == 100_000
    assert found["loss"] > 0
    assert found["etaSeconds"] > 0
    assert [(r["rank"], r["state"]) for r in found["ranks"]] == [(0, "Running"), (1, "Running")]
    assert not any(is_dead(r["pid"]) for r in found["ranks"])
    assert get(port, "/healthz") == "ok\n"
    metrics = get(port, "/metrics")
    assert "\ndtj_total_steps 100000\n" in metrics
    assert "\ndtj_save_failing 0\n" in metrics
    assert 'dtj_rank_up{rank="1"} 1' in metrics
    command.signal(signal.SIGTERM)
    assert command.wait().code == contract.EXIT_STOPPED
    assert status(port) == {}


@pytest.fixture(scope="module")
def sleeper(warm: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The agent of a script without dtj: its pid, and the port of its status page."""
    port, folder = free_port(), tmp_path_factory.mktemp("sleeper")
    (folder / "sleeper.py").write_text("import time\ntime.sleep(600)\n")
    with commands(warm, folder) as begin:
        agent = begin("run", "--port", port, folder / "sleeper.py")
        wait_for(lambda: status(port).get("ranks"), "the status page")
        yield agent.pid, port


def test_script_without_dtj_is_reported_as_running_and_nothing_more(sleeper: tuple[int, int]) -> None:
    _, port = sleeper
    found = status(port)
    assert {found[name] for name in ("step", "totalSteps", "epoch", "loss", "samplesPerSecond")} == {None}
    assert found["metrics"] == {}
    assert found["ranks"][0]["state"] == "Running"
    assert "dtj_step" not in get(port, "/metrics")


def test_unknown_page_is_not_found(sleeper: tuple[int, int]) -> None:
    with pytest.raises(urllib.error.HTTPError) as raised:
        get(sleeper[1], "/nothing")
    with raised.value as answer:
        assert answer.code == 404


def test_concurrent_requests_for_stacks_are_all_answered(sleeper: tuple[int, int]) -> None:
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda _: get(sleeper[1], "/stacks"), range(5)))
    assert all(answer.startswith("rank 0, pid ") for answer in answers)


def test_page_is_served_again_if_its_process_dies(sleeper: tuple[int, int]) -> None:
    """The operator would replace the pod, as one that is cut off."""
    agent, port = sleeper
    (server,) = {*children(agent)} - {rank["pid"] for rank in status(port)["ranks"]}
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: status(port).get("ranks"), "the status page again")
    assert get(port, "/stacks").startswith("rank 0, pid ")
    assert server not in children(agent)


def test_stacks_show_where_every_rank_is_now(start: Start, tmp_path: Path) -> None:
    port, script = free_port(), tmp_path / "sleeper.py"
    script.write_text("import time\ndef nap():\n    time.sleep(600)\nnap()\n")
    start("run", "--nproc", 2, "--port", port, script)
    wait_for(lambda: len(status(port).get("ranks", ())) == 2, "both ranks in the status")
    wait_for(lambda: get(port, "/stacks").count(f'File "{script}", line 3 in nap') == 2, "both naps")
    pids = [rank["pid"] for rank in status(port)["ranks"]]
    os.kill(pids[1], signal.SIGSTOP)
    first, second = get(port, "/stacks").split("rank 1, ")
    assert first.startswith(f"rank 0, pid {pids[0]}, step None\n")
    nap, line = f'File "{script}", line 3 in nap', f'File "{script}", line 4 in <module>'
    assert first.rstrip().endswith(f"{nap}\n  {line}"), "without what called the program"
    assert second == f"pid {pids[1]}, step None\nno stack: the process does not respond\n"
    os.kill(pids[1], signal.SIGCONT)
    wait_for(lambda: get(port, "/stacks").count(f'File "{script}", line 3 in nap') == 2, "rank 1 to respond")


def test_page_of_a_pod_answers_over_ipv4_and_ipv6() -> None:
    """In an IPv6 cluster the operator connects to the pod's IPv6 address."""
    try:  # a kernel with IPv6 may have no address, as in most containers
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    port = free_port()
    server = StatusServer.start("", port)
    try:
        server.publish({"step": 7})
        for host in ("127.0.0.1", "[::1]"):
            with urllib.request.urlopen(f"http://{host}:{port}/status", timeout=10) as answer:
                assert json.loads(answer.read()) == {"step": 7}
    finally:
        server.stop()


def test_job_trains_without_a_status_page_if_the_port_is_taken(
    finish: Callable[..., Finished], start: Start, tmp_path: Path
) -> None:
    port, script = free_port(), tmp_path / "sleeper.py"
    script.write_text("import time\ntime.sleep(600)\n")
    start("run", "--port", port, script)
    wait_for(lambda: status(port), "the status page")
    ended = finish(
        "run", "--port", port, PROGRAMS / "env.py", MASTER_PORT=free_port(), MASTER_ADDR="127.0.0.1"
    )
    assert ended.code == 0
    assert f"cannot serve the status page on port {port}" in ended.err
