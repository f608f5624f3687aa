"""The one way in which this tool starts other programs, and how it tells that it is still alive.

Short commands are silent. A long one is given `step`: what it does and about how long that takes. One line
says so at the start, one each minute that it still runs, one when it is done, with the time it took. What the
program printed is kept and shown only if it fails.
"""

import contextlib
import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.cluster.errors import ClusterError

REMINDER_S = 60
TAIL_LINES = 25


def say(text: str) -> None:
    """Progress goes to stderr: stdout belongs to what a verb returns."""
    print(f"cluster: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def timed(step: str) -> Iterator[None]:
    """Announce a step of several commands and say how long it took."""
    say(step)
    start = time.monotonic()
    yield
    say(f"  done in {time.monotonic() - start:.0f} s")


def run(
    *argv: str | Path,
    step: str = "",
    stdin: str | IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    fix: str = "",
) -> str:
    """Run a program to its end and return its stdout.

    step   for long ones, e.g. "building etcd (about 90 s)"
    stdin  text to send, or an open file to read from
    env    added to our environment
    Raises ClusterError with the end of the output when it exits with anything but 0.
    """
    if step:
        with timed(step):
            return run(*argv, stdin=stdin, env=env, cwd=cwd, fix=fix)
    command = [str(a) for a in argv]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(command, stdin=stdin, stdout=out, stderr=err, env=env, cwd=cwd)
        began = time.monotonic()
        while True:
            try:
                code = process.wait(REMINDER_S)
                break
            except subprocess.TimeoutExpired:
                say(f"  {command[0].rsplit('/')[-1]} still runs, {time.monotonic() - began:.0f} s")
            except BaseException:
                process.terminate()
                process.wait()
                raise
        out.seek(0)
        err.seek(0)
        output, errors = out.read().decode(errors="replace"), err.read().decode(errors="replace")
    if code != 0:
        raise ClusterError(failure(command, code, errors + output), fix=fix)
    return output


def start(
    command: Sequence[str],
    *,
    stdin: str | IO[bytes] | None,
    stdout: IO[bytes],
    stderr: IO[bytes],
    env: Mapping[str, str] | None,
    cwd: Path | None,
) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **(env or {})}
    try:
        if isinstance(stdin, str):
            with tempfile.TemporaryFile() as text:
                text.write(stdin.encode())
                text.seek(0)
                return subprocess.Popen(
                    command, stdin=text, stdout=stdout, stderr=stderr, env=environment, cwd=cwd
                )
        source = subprocess.DEVNULL if stdin is None else stdin
        return subprocess.Popen(command, stdin=source, stdout=stdout, stderr=stderr, env=environment, cwd=cwd)
    except FileNotFoundError as error:
        raise ClusterError(
            f"{command[0]} is not installed, it is needed for `{shlex.join(command)}`"
        ) from error


def works(*argv: str | Path, env: Mapping[str, str] | None = None, within_s: float = 20) -> bool:
    """Whether a program exists, ends within the time and says that all is well. Never raises."""
    try:
        done = subprocess.run(
            [str(a) for a in argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
            timeout=within_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def failure(command: Sequence[str], code: int, output: str) -> str:
    """One message for a command that failed: what it was, how it ended, the last lines it printed."""
    shown = shlex.join(command)
    lines = output.strip().splitlines()[-TAIL_LINES:] or ["(it printed nothing)"]
    quoted = "\n".join(f"    | {line}" for line in lines)
    return f"`{shown[:300]}` ended with exit code {code}:\n{quoted}"


def pipe(source: Sequence[str], sink: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """Send one program's stdout to another's stdin, without a file between them."""
    with tempfile.TemporaryFile() as err:
        reader = subprocess.Popen(
            source, stdout=subprocess.PIPE, stderr=err, env={**os.environ, **(env or {})}
        )
        try:
            run(*sink, stdin=reader.stdout, env=env)
        finally:
            if reader.stdout:
                reader.stdout.close()
            code = reader.wait()
        err.seek(0)
        if code != 0:
            raise ClusterError(failure(source, code, err.read().decode(errors="replace")))


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock that other clones on this machine respect; the kernel frees it however we end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting: another run holds {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def need_disk(folder: Path, gib: float, *, what: str) -> None:
    """Fail before a long step begins, not at its end, where a disk is too full for it."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    if free < gib:
        raise ClusterError(
            f"{what} needs {gib:g} GiB of disk, {folder} has {free:.1f} GiB free",
            fix="free some, or set DTJ_CACHE to a folder on another disk",
        )
