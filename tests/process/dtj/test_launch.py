"""The launcher: any script, complete logs, the right culprit, no processes left behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dtj import contract
from tests.process.dtj.conftest import PROGRAMS, Command, Finished, children, free_port, is_dead, wait_for

Finish = Callable[..., Finished]
Start = Callable[..., Command]
SMALL = PROGRAMS / "small.py"
DIGITS = "dtj.recipes.digits:recipe"


def test_pod_whose_ranks_are_done_does_not_wait_for_ever_for_a_replica_0_that_is_gone(
    start: Start, tmp_path: Path
) -> None:
    """Replica 0's last word was lost with the connection, and its pod has ended."""
    (tmp_path / "done.py").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        env = {"NNODES": 2, "NODE_RANK": 1, "MASTER_ADDR": "127.0.0.1"}
        port = server.getsockname()[1]
        changed = {"dtj.agent.launch.DONE_S": 0.5}
        agent = start("run", tmp_path / "done.py", **env, MASTER_PORT=port, changed=changed)
        link, _ = server.accept()
    form = {
        "generation": 1,
        "port": 1,
        "kept": [],
        "heals": False,
        "replicas": 2,
        "gracefully": False,
        "connect_s": 1.0,
        "copies": {"buddy": None, "ward": None},
    }
    with link, link.makefile("rw") as lines:
        print(json.dumps({"form": form}), file=lines, flush=True)
        assert any('"ended"' in line for line in lines)
    ended = agent.wait()
    assert ended.code == 0, ended.err
    assert "all ranks are done, and replica 0 has been gone for" in ended.err


def test_rank_that_closed_its_output_does_not_affect_another_ranks_output(
    finish: Finish, tmp_path: Path
) -> None:
    """Its pipes' fd numbers are free while it still runs, and are reused for the next forked rank."""
    ended = finish("run", "--nproc", 2, "--max-restarts", 1, PROGRAMS / "closes_output.py", OUT=tmp_path)
    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == [f"[rank {r}] rank {r} is heard" for r in range(2)]


def test_script_that_closes_its_stdout_exits_as_under_python(finish: Finish) -> None:
    ended = finish("run", PROGRAMS / "own_output.py")
    assert (ended.code, ended.err) == (0, "[rank 0] done\n")


def test_agent_opens_standard_streams_that_it_was_started_without() -> None:
    """As by some supervisors of services. Else a rank writes its output into a pipe of the agent."""
    looks = "\n".join(
        [
            "import os, sys",
            "from dtj.entry import open_closed_streams",
            "open_closed_streams()",
            "assert min(os.pipe()) > 2",
            "assert (sys.stdin.read(), sys.stdout.isatty(), sys.stderr.isatty()) == ('', False, False)",
        ]
    )
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, looks]
    assert subprocess.run(command, check=False).returncode == 0


def test_script_has_the_names_that_it_has_under_python(finish: Finish, tmp_path: Path) -> None:
    """Debuggers and libraries read the source with __loader__; a script may read __annotations__.

    A script that has replaced sys.stdout sets it back to sys.__stdout__, and expects to see what it prints.
    """
    script = tmp_path / "shows.py"
    script.write_text(
        "import sys; print(sorted(globals()), type(__loader__).__name__, __loader__.get_source(__name__), "
        "__cached__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)"
    )
    python = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert finish("run", script).out == f"[rank 0] {python.stdout}"


def test_plain_script_finds_its_peers(finish: Finish) -> None:
    ended = finish("run", "--nproc", 3, PROGRAMS / "env.py", "--its-own", "flag")
    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == [
        f"[rank {r}] sum 6 LOCAL_RANK={r} LOCAL_WORLD_SIZE=3 GROUP_RANK=0 WORLD_SIZE=3 --its-own flag"
        for r in range(3)
    ]


def test_two_pods_form_one_world(start: Start) -> None:
    """With the variables that the operator sets, and two processes per pod."""
    place = {"NNODES": 2, "NPROC_PER_NODE": 2, "WORLD_SIZE": 4, "MASTER_PORT": free_port()}
    nodes = [
        start("run", PROGRAMS / "env.py", NODE_RANK=n, MASTER_ADDR="127.0.0.1", **place) for n in range(2)
    ]
    out = "".join(node.wait().out for node in nodes)
    assert sorted(
        re.findall(r"\[rank (\d)\] sum 10 LOCAL_RANK=(\d) LOCAL_WORLD_SIZE=2 GROUP_RANK=(\d)", out)
    ) == [
        ("0", "0", "0"),
        ("1", "1", "0"),
        ("2", "0", "1"),
        ("3", "1", "1"),
    ]


def test_module_is_run_like_python_m(finish: Finish) -> None:
    ended = finish("run", "-m", "json.tool", "--help")
    assert ended.code == 0
    assert "usage:" in ended.out


@pytest.mark.parametrize(
    ("how", "code", "reason", "message"),
    [
        pytest.param("raise", 1, "Exception", "ValueError: label 11 is out of range", id="an exception"),
        pytest.param("exit", 3, "ExitCode", "rank 2 exited with code 3 after step 7", id="an exit code"),
        pytest.param(
            "SIGKILL", 137, "Signal", "rank 2 was killed by SIGKILL after step", id="killed by the kernel"
        ),
        pytest.param(
            "SIGSEGV", 139, "Signal", "rank 2 was killed by SIGSEGV after step", id="a crash in native code"
        ),
        pytest.param("bad recipe", 78, "BadRecipe", "width is 7, expected an even number", id="a bad recipe"),
    ],
)
def test_first_failed_rank_is_named_rather_than_those_that_lost_it(
    finish: Finish, tmp_path: Path, how: str, code: int, reason: str, message: str
) -> None:
    log = tmp_path / "termination-log"
    ended = finish(
        *("run", "--nproc", 3, "--termination-log", log, SMALL),
        OUT=tmp_path,
        PLAIN=1,
        FAIL_AT=7,
        FAIL_RANK=2,
        FAIL_HOW=how,
    )
    assert ended.code == code
    fields: dict[str, Any] = json.loads(log.read_text())
    assert tuple(fields) == contract.TERMINATION_FIELDS
    assert fields["rank"] == 2
    assert fields["exitCode"] == code
    assert fields["reason"] == reason
    assert message in fields["message"]
    if how == "SIGSEGV":
        assert "Fatal Python error: Segmentation fault" in fields["message"]
        assert "small.py" in fields["message"]
        assert "commands.py" not in fields["message"], "the frames of dtj say nothing"
    assert 1 <= fields["step"] <= 7
    assert message.split(" after", maxsplit=1)[0] in ended.err.splitlines()[-1 if how != "bad recipe" else -2]


@pytest.mark.parametrize(
    ("leaves", "code", "message"),
    [
        pytest.param("'there is nothing in /data'", 1, "there is nothing in /data", id="a sentence"),
        # The code of an agreed stop, which the operator restarts for ever.
        pytest.param("75", 75, "rank 0 exited with code 75 before its first step", id="EX_TEMPFAIL"),
        pytest.param(
            "print('no file /data') or 42",
            42,
            "its last output:\nno file /data\nrank 0 exited with code 42 before its first step",
            id="a code after a line of output",
        ),
    ],
)
def test_exit_of_a_script_is_in_the_termination_message(
    finish: Finish, tmp_path: Path, leaves: str, code: int, message: str
) -> None:
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(f"import sys; sys.exit({leaves})")
    assert finish("run", "--termination-log", log, script).code == code
    fields = json.loads(log.read_text())
    assert (fields["reason"], fields["message"]) == ("ExitCode", message)


def test_machine_that_cannot_start_a_process_is_named(finish: Finish, tmp_path: Path) -> None:
    """Here the process in which the ranks find each other, which ends before it listens."""
    log = tmp_path / "log"
    flags = ("run", "--nproc", 2, "--termination-log", log, SMALL)
    ended = finish(*flags, OUT=tmp_path, changed={"dtj.agent.coordinator.store._serve": os.close})
    message = json.loads(log.read_text())["message"]
    assert (ended.code, ended.err) == (contract.EXIT_PEER_LOST, f"dtj: {message}\n")
    assert message.startswith("the rendezvous store of the ranks did not start within 15 s\n  fix: check")


def test_traceback_starts_in_the_user_s_file(finish: Finish, tmp_path: Path) -> None:
    log = tmp_path / "log"
    finish("run", "--termination-log", log, SMALL, OUT=tmp_path, PLAIN=1, FAIL_AT=1)
    lines = json.loads(log.read_text())["message"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].startswith(f'  File "{SMALL}"')


def test_pod_that_only_lost_a_peer_exits_76(start: Start, tmp_path: Path) -> None:
    port = free_port()
    nodes = [
        start(
            *("run", "--termination-log", tmp_path / f"log-{n}", SMALL),
            **{"OUT": tmp_path, "PLAIN": 1, "FAIL_AT": 5, "FAIL_RANK": 1, "FAIL_HOW": "SIGKILL"},
            **{"NNODES": 2, "NODE_RANK": n, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        )
        for n in range(2)
    ]
    assert [node.wait().code for node in nodes] == [contract.EXIT_PEER_LOST, 137]
    fields = json.loads((tmp_path / "log-0").read_text())
    assert (fields["reason"], fields["rank"]) == ("PeerLost", None)
    assert fields["message"].startswith("lost a peer: rank 1 was killed by SIGKILL")
    its_own = json.loads((tmp_path / "log-1").read_text())
    repeated = {name: fields["culprit"][name] for name in ("rank", "reason", "exitCode", "message", "at")}
    assert (fields["culprit"]["replica"], repeated) == (1, {name: its_own[name] for name in repeated})


def test_success_is_reported_with_its_last_numbers_and_checkpoint(finish: Finish, tmp_path: Path) -> None:
    log, saved = tmp_path / "log", tmp_path / "saved"
    ended = finish(
        "run", "--nproc", 2, "--checkpoint", saved, "--termination-log", log, SMALL, OUT=tmp_path, PLAIN=1
    )
    assert ended.code == 0
    fields = json.loads(log.read_text())
    assert fields.pop("loss") >= 0
    assert fields.pop("samplesPerSecond") > 0
    assert fields | {"at": ""} == {
        "step": 20,
        "totalSteps": 20,
        "epoch": 2,
        "reason": "Done",
        "rank": None,
        "exitCode": 0,
        "message": "2 ranks done at step 20",
        "checkpoint": str(saved / "step-20"),
        "generation": 1,
        "inPlace": 0,
        "withoutProgress": 0,
        "identicalFailures": 0,
        "at": "",
        "culprit": None,
    }


def test_every_line_of_a_dying_rank_is_in_the_log_and_its_children_are_gone(
    finish: Finish, tmp_path: Path
) -> None:
    ended = finish("run", "--nproc", 2, PROGRAMS / "chatty.py", OUT=tmp_path)
    assert ended.code == 9
    for rank in range(2):
        mine = [line for line in ended.out.splitlines() if line.startswith(f"[rank {rank}] ")]
        assert mine == [f"[rank {rank}] line {n} of {rank} {'x' * 50}" for n in range(2000)] + [
            f"[rank {rank}] the last wor"
        ]
        child = int((tmp_path / f"child-{rank}").read_text())
        wait_for(partial(is_dead, child), "the rank's child to exit")


def test_only_the_selected_ranks_are_shown(finish: Finish) -> None:
    ended = finish("run", "--nproc", 3, "--ranks", "0,2", PROGRAMS / "env.py")
    assert sorted(line[:8] for line in ended.out.splitlines()) == ["[rank 0]", "[rank 2]"]


def test_json_log_has_one_object_per_line_with_its_rank(finish: Finish, tmp_path: Path) -> None:
    last = ("--termination-log", tmp_path / "gone" / "log")  # cannot be written, which the agent says
    ended = finish("run", "--nproc", 2, "--log", "json", *last, SMALL, OUT=tmp_path, PLAIN=1, STEPS=3)
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert {line["rank"] for line in lines} == {0}
    steps = [line["step"] for line in lines]
    assert steps in ([1, 3], [1, 2, 3]), "the first and the last, and one more if a second has passed"
    said = [json.loads(line) for line in ended.err.splitlines()]
    assert {line["message"][:4] for line in said} == {"dtj:"}
    assert "dtj: cannot write the termination message" in said[-1]["message"]
    assert "rank" not in said[-1], "it is the agent's"


def test_ranks_die_with_a_killed_agent(start: Start, tmp_path: Path) -> None:
    command = start("run", "--nproc", 2, SMALL, OUT=tmp_path, PLAIN=1, STEPS=100_000, READY_AT=2)
    wait_for((tmp_path / "ready").exists, "step 2")
    started = children(command.pid)
    assert len(started) == 3  # two ranks and the store
    os.kill(command.pid, signal.SIGKILL)
    wait_for(lambda: all(is_dead(pid) for pid in started), "the ranks to exit")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, id="the terminal is gone")])
def test_sigterm_reaches_a_script_that_does_not_handle_it(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    script = tmp_path / "sleeper.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    command = start("run", script)
    wait_for(lambda: "up" in command.out, "the script to start")
    command.signal(number)
    assert command.wait().code == 128 + signal.SIGTERM


ASKED_TO_STOP = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "click" and os.getpid() == 1:
            os.kill(1, signal.SIGTERM)
sys.meta_path.insert(0, Finder())
"""


def test_sigterm_that_process_1_gets_while_it_imports_its_modules_is_not_lost(tmp_path: Path) -> None:
    """The kernel ignores one that process 1 of a container neither handles nor blocks."""
    container = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child")
    tried = subprocess.run([*container, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no permission to create namespaces: {tried.stderr.strip()}")
    (tmp_path / "sitecustomize.py").write_text(ASKED_TO_STOP)
    (tmp_path / "rank.py").write_text("print('trains')")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    words = [*container, sys.executable, "-m", "dtj", "run", str(tmp_path / "rank.py")]
    ended = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGTERM, ""), ended.stderr


def test_second_ctrl_c_kills_at_once_and_is_not_a_success(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "stubborn.py"
    script.write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGINT, lambda *_: os.write(1, b'asked\\n'))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    command = start("run", script)
    wait_for(lambda: "up" in command.out, "the script to start")
    command.signal(signal.SIGINT)
    wait_for(lambda: "asked" in command.out, "the first signal")
    command.signal(signal.SIGINT)
    assert command.wait().code == 128 + signal.SIGINT


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(["run", "-m", "nosuch"], "there is no module 'nosuch'", id="no such module"),
        pytest.param(["train", DIGITS, "epoch=3"], "did you mean 'epochs'", id="a mistyped argument"),
    ],
)
def test_bad_input_that_a_rank_finds_exits_78_with_a_message_and_no_traceback(
    finish: Finish, argv: list[object], message: str
) -> None:
    """What the agent finds: tests/unit/dtj/test_commands.py."""
    ended = finish(*argv)
    assert ended.code == 78
    assert message in ended.err
    assert "Traceback" not in ended.err
    assert ended.err.startswith("dtj: ")
    assert "\n  fix: " in ended.err
