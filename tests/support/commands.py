"""Runs the real commands `dtj`, `torchrun` and `python` in real processes, from one that has imported torch.

Importing torch takes seconds; a fork takes milliseconds. Each command is forked from Python's forkserver, and
is then like one started by a shell: it has its own pid, signals and exit code.
"""

import contextlib
import faulthandler
import importlib
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from dtj.agent.rank import preload
from dtj.ranks.parent_death import die_with
from tests.support import netns
from tests.support.forked import warmed

DEADLINE_S = 240.0
# Arguments that make a training run of a recipe take seconds; they replace those of an example or a page.
SMALL = {
    "dtj.recipes.text:recipe": ("epochs=1", "kilobytes=8", "layers=1", "width=64", "context=32", "sample=1"),
    "dtj.recipes.digits:recipe": ("epochs=1",),
}
_OWN = ("DTJ_", "OMP_", "PET_")
_RANKS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "NNODES",
    "NPROC_PER_NODE",
)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The result of a command."""

    code: int | None
    out: str
    err: str


class Command:
    """A running `dtj ...` or `torchrun ...`."""

    def __init__(self, process: ForkServerProcess, folder: Path) -> None:
        self._process = process
        self._folder = folder

    @property
    def pid(self) -> int:
        assert self._process.pid
        return self._process.pid

    @property
    def out(self) -> str:
        """Standard output so far."""
        return (self._folder / "out").read_text()

    @property
    def err(self) -> str:
        """Standard error so far."""
        return (self._folder / "err").read_text()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, *, deadline_s: float = DEADLINE_S) -> Finished:
        """Wait until it exits; fail after the deadline, with the stacks of the command."""
        self._process.join(deadline_s)
        if self._process.exitcode is None:
            self.signal(signal.SIGUSR1)  # makes it print its stacks, see `_become`
            self._process.join(1.0)
            raise AssertionError(f"the command hangs: {self.out}\n{self.err}")
        return Finished(code=self._process.exitcode, out=self.out, err=self.err)

    def kill(self) -> None:
        if self._process.exitcode is None:  # else its pid may be that of another process by now
            self._process.kill()
        self._process.join()


Start = Callable[..., Command]


def small(words: Sequence[str]) -> list[str]:
    """Return the command with the arguments in `SMALL` instead of its own, if it trains a recipe of ours."""
    instead = next((arguments for recipe, arguments in SMALL.items() if recipe in words), ())
    replaced = {argument.partition("=")[0] + "=" for argument in instead}
    return [*(word for word in words if not word.startswith(tuple(replaced))), *instead]


def warm() -> ForkServerContext:
    """Return a context that forks processes which have imported what agents import, and our recipes."""
    # Also this module: every process finds its target function in it, and it has many imports.
    return warmed(*preload.MODULES, "sklearn.datasets", "dtj.models.gpt", "dtj.cli.commands", __name__)


@contextlib.contextmanager
def commands(context: ForkServerContext, folder: Path) -> Iterator[Start]:
    """Yield a function that starts commands, each in its own folder below `folder`; kill all at the end.

    Its arguments are those of `dtj`, or "torchrun" and those of torchrun, or "python", a script and those
    of the script. Keywords are environment variables, but for:

    network  the name of the network namespace that the command runs in; the test's own by default
    changed  dotted names of attributes of dtj's modules -> values that they have in this command
    imports  modules that the command imports first, so that the ranks that it forks share them
    out      the file that it writes its standard output to, such as a FIFO
    """
    started: list[Command] = []

    def begin(
        *argv: object,
        network: str = "",
        changed: Mapping[str, object] | None = None,
        imports: Sequence[str] = (),
        out: Path | None = None,
        **env: object,
    ) -> Command:
        own = folder / f"command-{len(started)}"
        own.mkdir()
        (own / "out").touch()
        words = [str(word) for word in argv]
        variables = {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in env.items()}
        files = (out or own / "out", own / "err")
        given = (words, variables, files, Path.cwd(), sys.path, network, dict(changed or {}), imports)
        process = context.Process(target=_become, args=given)
        process.start()
        started.append(Command(process, own))
        wait_for(lambda: (own / "err").exists() or process.exitcode is not None, "the command to start")
        assert (own / "err").exists(), f"the command exited with {process.exitcode} before it started"
        return started[-1]

    try:
        yield begin
    finally:
        for command in started:
            command.kill()


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Poll until the condition holds; fail after a deadline far longer than any normal duration."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.005)


def children(pid: int) -> list[int]:
    """Pids of what the main thread of a process has started and has not waited for, oldest first."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_dead(pid: int) -> bool:
    """Whether no process has this id, or only a zombie."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    return True


def _become(
    words: list[str],
    env: dict[str, str],
    files: tuple[Path, Path],
    cwd: Path,
    path: list[str],
    network: str,
    changed: Mapping[str, object],
    imports: Sequence[str],
) -> None:
    sys.path[:] = path
    die_with(os.getppid())  # the forkserver ends with pytest, also after Ctrl-C
    for name in [n for n in os.environ if n.startswith(_OWN) or n in _RANKS]:
        del os.environ[name]
    os.environ.update(env)
    os.chdir(cwd)
    for fd, written in enumerate(files, 1):
        file = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, fd)
        os.close(file)
    faulthandler.register(signal.SIGUSR1, chain=False)  # to see where it hangs
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup` ignores, and a shell SIGINT of what it runs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background
    if network:
        netns.enter(network)
    for name in imports:
        importlib.import_module(name)
    for name, value in changed.items():
        module, _, attribute = name.rpartition(".")
        setattr(importlib.import_module(module), attribute, value)
    if words[0] == "torchrun":
        from torch.distributed.run import main as torchrun

        sys.path[:0] = env.get("PYTHONPATH", "").split(os.pathsep)  # this Python has read it already
        torchrun(words[1:])
    elif words[0] == "python":
        sys.argv = words[1:]
        sys.path.insert(0, str(Path(words[1]).parent))
        runpy.run_path(words[1], run_name="__main__")
    else:
        from dtj.cli.commands import main

        main(words)
