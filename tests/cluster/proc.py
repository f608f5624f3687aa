"""Starts other programs and reports progress; the only module of this package that does.

Short commands print nothing. Long commands get a `step`: what they do and about how long it takes. It is
printed at the start; a line each minute says that the command is still running, and one at the end how long
it took. The program's output is shown only if it fails.
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
    """Print progress to stderr; stdout is for the result of a verb."""
    print(f"cluster: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def timed(step: str) -> Iterator[None]:
    """Print what a step of several commands does, and at the end how long it took."""
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
    """Run a program until it exits and return its stdout.

    step   for long commands, e.g. "building etcd (about 90 s)"
    stdin  text to send, or an open file to read from
    env    added to our environment
    Raises ClusterError with the end of the output if the exit code is not 0.
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
                say(f"  {command[0].rsplit('/')[-1]} is still running after {time.monotonic() - began:.0f} s")
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
            f"{command[0]} is not installed; it is needed for `{shlex.join(command)}`"
        ) from error


def works(*argv: str | Path, env: Mapping[str, str] | None = None, within_s: float = 20) -> bool:
    """Whether a program exists and exits with 0 within the time. Never raises."""
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
    """The message for a failed command: the command, its exit code, and the last lines of its output."""
    shown = shlex.join(command)
    lines = output.strip().splitlines()[-TAIL_LINES:] or ["(no output)"]
    quoted = "\n".join(f"    | {line}" for line in lines)
    return f"`{shown[:300]}` exited with code {code}:\n{quoted}"


def pipe(source: Sequence[str], sink: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """Send one program's stdout to another's stdin, without a file in between."""
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
    """Hold a lock that other clones on this machine respect; the kernel releases it when we exit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run that holds the lock {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def need_disk(folder: Path, gib: float, *, what: str) -> None:
    """Fail before a long step starts, not at its end, if the disk has too little free space."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    if free < gib:
        raise ClusterError(
            f"not enough disk space for {what}: needs {gib:g} GiB, {folder} has {free:.1f} GiB free",
            fix="free some space, or set DTJ_CACHE to a folder on another disk",
        )
