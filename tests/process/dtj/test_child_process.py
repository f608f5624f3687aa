"""Helpers that the agent forks: they die with it, and only its signals stop them."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtj.agent.child_process import fork_helper
from dtj.ranks.parent_death import die_with
from tests.process.dtj.conftest import is_dead, wait_for


@pytest.fixture
def helper() -> Iterator[int]:
    """The pid of a helper that waits."""

    def wait() -> None:
        os.write(ready, b".")
        while True:
            signal.pause()

    read, ready = os.pipe()
    pid = fork_helper(wait, keep=[ready])
    os.read(read, 1)
    os.close(read)
    os.close(ready)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_helper_has_its_own_process_group_and_survives_an_interrupt(helper: int) -> None:
    assert os.getpgid(helper) == helper
    os.kill(helper, signal.SIGINT)
    os.kill(helper, signal.SIGTERM)
    found = os.waitid(os.P_PID, helper, os.WEXITED | os.WNOWAIT)
    assert found
    assert (found.si_code, found.si_status) == (os.CLD_KILLED, signal.SIGTERM)


def test_helper_has_none_of_the_agents_files() -> None:
    """A copy of a connection or of a rank's pipe would keep it open when the agent has closed it."""
    with socket.socket() as connection, tempfile.TemporaryFile() as kept:
        names = [Path(f"/proc/self/fd/{each.fileno()}").readlink() for each in (connection, kept)]
        pid = fork_helper(signal.pause, keep=[kept.fileno()])
        try:
            folder = Path(f"/proc/{pid}/fd")
            wait_for(lambda: len(list(folder.iterdir())) == 4, "the helper to close what it does not need")
            found = {fd.readlink() for fd in folder.iterdir()}
            assert [name in found for name in names] == [False, True]
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_helper_does_not_outlive_an_agent_that_was_killed() -> None:
    code = (
        "import signal; from dtj.agent.child_process import fork_helper;"
        "print(fork_helper(signal.pause), flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as agent:
        assert agent.stdout
        pid = int(agent.stdout.readline())
        agent.kill()
    wait_for(lambda: is_dead(pid), "the helper to die")


def test_process_whose_parent_is_gone_already_exits() -> None:
    pid = os.fork()
    if pid == 0:
        die_with(os.getpid())  # not its parent, as if the parent were gone
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
