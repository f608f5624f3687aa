"""What a forked child does to become a rank: environment, pipes, the program, and a reported exit.

`process.py` forks and calls it; the program is a plain function without arguments.
"""

import argparse
import contextlib
import faulthandler
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dtj import contract
from dtj.agent import process_end
from dtj.agent.child_process import detach
from dtj.agent.rank import heap, openings, optimizer_steps, own_stacks, preload
from dtj.agent.rank.uncaught import UncaughtErrors
from dtj.agent.wire import outcome
from dtj.copies import slot
from dtj.errors import DtjError, Stopped, is_device_fault, lost_peer, raised_by
from dtj.ranks import control_pipe, device_files, stop
from dtj.telemetry import heartbeat, report_pipe
from dtj.telemetry.heartbeat import SharedHeartbeat

Program = Callable[[], None]

_pid: int | None = None  # of the rank; a process that its program forks is another one

_USAGE = 2  # exit code of argparse for wrong arguments
_INTERRUPTED = contract.EXIT_SIGNAL + signal.SIGINT

# What calls the user's code: its frames are left out of tracebacks.
_LAUNCHER = tuple(Path(__file__).parents[2] / folder for folder in ("agent/rank", "cli"))


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """File descriptors of a rank: for its output, its reports and its orders.

    agent  pid of the agent; the rank dies with it
    """

    agent: int
    stdout: int
    stderr: int
    reports: int
    orders: int
    stacks: int  # where it writes its stacks when the agent asks
    heartbeat: SharedHeartbeat
    slots: tuple[int, ...]  # shared memory for copies of the rank's state
    foreign: Sequence[int]  # the agent's; a data worker that outlives the rank must not hold them open


def become(program: Program, env: Mapping[str, str], *, threads: int, wiring: Wiring) -> None:
    """Run the program as one rank and end this process. Called in the child, right after the fork."""
    code = 1
    try:
        _set_up_process(env, wiring)
        heap.keep_for_next_step(os.environ)
        _prepare_torch(threads)
        code = _run(program)
        if _is_rank():
            heartbeat.mine.leave(is_done=code == contract.EXIT_DONE)
        process_end.run_exit_functions()
        if code != contract.EXIT_PEER_LOST:  # else an object may wait for that peer
            process_end.let_go(sys.modules["__main__"])
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BaseException:  # noqa: BLE001 - the child must never return into the agent
        traceback.print_exc()
    finally:
        process_end.end_now(code)


def _set_up_process(env: Mapping[str, str], wiring: Wiring) -> None:
    global _pid  # noqa: PLW0603 - a process is one rank
    _pid = os.getpid()
    detach(wiring.agent)
    os.dup2(wiring.stdout, 1)
    os.dup2(wiring.stderr, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for fd in (wiring.stdout, wiring.stderr, null, *wiring.foreign):
        os.close(fd)
    out, err = (open(fd, "w", buffering=1, closefd=False, errors="replace") for fd in (1, 2))  # noqa: SIM115
    # A program that has replaced sys.stdout sets it back to sys.__stdout__.
    vars(sys).update(stdout=out, __stdout__=out, stderr=err, __stderr__=err)
    faulthandler.enable()
    own_stacks.answer(wiring.stacks)
    os.environ.update(env)
    if env[contract.NNODES] == "1":  # a laptop's host name often resolves to an unreachable address
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    report_pipe.open_pipe(wiring.reports)
    control_pipe.open_pipe(wiring.orders)
    heartbeat.use(wiring.heartbeat)
    slot.inherit(wiring.slots)


def _prepare_torch(threads: int) -> None:
    # Loaded by the agent before the fork; this module must import quickly.
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415

    from dtj.ranks.world import choose_store  # noqa: PLC0415

    # As in a process of its own: all ranks, also those of a restart, have inherited the same generators.
    np.random.seed()
    torch.default_generator.seed()
    torch.set_num_threads(threads)  # the libraries read OMP_NUM_THREADS before the fork
    optimizer_steps.count()
    if not device_files.has_gpu(os.environ):
        # Else torch looks for NVML's library each time that it asks for a GPU: 700 times as a rank of tp+fsdp
        # plans its operations, a sixth of its CPU time. CUDA remembers its answer.
        os.environ.pop(preload.NVML_CHECK, None)
    if int(os.environ[contract.WORLD_SIZE]) > 1:
        choose_store()
        openings.separate()
        found = torch.accelerator.current_accelerator()  # that this torch was built for
        if found is None or (found.type == "cuda" and not device_files.has_gpu(os.environ)):
            # Else Accelerate, and so transformers' Trainer, lets each rank train for itself on CPUs.
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")


def is_first_life() -> bool:
    """Whether no rank of the job was ever restarted, by agents or by the operator.

    Then a program that does not begin is wrong. Later it has begun before, with the same arguments: another
    node may lack a volume, or its file may be half saved.
    """
    earlier = {contract.GENERATION: "1", contract.ATTEMPT: "0", contract.RESTARTS: "0"}
    return all(os.environ.get(name, first) == first for name, first in earlier.items())


def _is_rank() -> bool:
    """Whether this is the rank, and not a process that its program forked, which may also end here."""
    return _pid in (None, os.getpid())


def _run(program: Program) -> int:
    """Run the program and return its exit code; print and report a failure once."""
    uncaught, stop.left = UncaughtErrors(), None
    try:
        program()
    except SystemExit as end:
        code = _code_of(end)
        has_stopped = isinstance(end, Stopped) or isinstance(end.__context__, Stopped)
        if code == contract.EXIT_DONE:
            return _done_or_stopped()
        if has_stopped and code == contract.EXIT_STOPPED:
            return code
        if not has_stopped and (lost := lost_peer(end)):
            return _report_lost(lost)
        # Report now: its exit functions may take longer than the other ranks live.
        cause = end.code if isinstance(end.code, str) else "" if has_stopped else _handled_at(end)
        if code == _USAGE and heartbeat.mine.step is None and is_first_life() and _argparse_said(end):
            code = contract.EXIT_BAD_RECIPE
        _report(cause, code=code, reason="BadRecipe" if code == contract.EXIT_BAD_RECIPE else "ExitCode")
        return code
    except DtjError as error:
        # Printed by the agent, once for all ranks.
        _report(str(error), code=error.exit_code, reason=error.reason, is_for_people=True)
        uncaught.hand_over(error, is_shown=not _is_rank())
        return error.exit_code
    except BaseException as error:  # noqa: BLE001 - the user's program may raise anything
        is_interrupt = isinstance(error, KeyboardInterrupt)
        if is_interrupt and raised_by(error) in (None, stop.__name__):  # by Ctrl-C: each rank would show one
            uncaught.hand_over(error, is_shown=False)
            return _INTERRUPTED
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler could raise before this is reported
        lost = lost_peer(error)
        text = "".join(traceback.format_exception(_without_our_frames(error)))
        # Report first: a hook of the program may take long, or end the process.
        if lost:
            code = _report_lost(lost)
        else:
            code = _INTERRUPTED if is_interrupt else 1
            is_device = is_device_fault(error) and device_files.has_gpu(os.environ)
            _report(text, code=code, reason="DeviceFault" if is_device else "Exception")
        uncaught.hand_over(error, is_shown=error is not lost)  # a traceback would only show a wait
        return code
    return _done_or_stopped()


def _done_or_stopped() -> int:
    """The exit code of a program that ended with 0; it may have caught a stop, in the middle of training."""
    code = stop.left or contract.EXIT_DONE
    if code not in {contract.EXIT_DONE, contract.EXIT_STOPPED}:
        _report("", code=code, reason="ExitCode")
    return code


def _report_lost(error: BaseException) -> int:
    print(f"dtj: lost a peer: {error}", file=sys.stderr)
    _report(f"lost a peer: {error}", code=contract.EXIT_PEER_LOST, reason="PeerLost")
    return contract.EXIT_PEER_LOST


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)  # sys.exit("some text") prints it and means 1
    return 1


def _handled_at(end: SystemExit) -> str:
    """What argparse said, or the exception that the program was handling: both print it, and then exit."""
    handled = None if end.__suppress_context__ else end.__context__
    return _argparse_said(end) or ("".join(traceback.format_exception(handled)) if handled else "")


def _argparse_said(end: SystemExit) -> str:
    """What argparse said of the program's arguments before it exited; empty if it did not."""
    for frame, _ in traceback.walk_tb(end.__traceback__):
        if frame.f_code is argparse.ArgumentParser.error.__code__:
            return f"{frame.f_locals['self'].prog}: error: {frame.f_locals['message']}"
    return ""


def _without_our_frames(error: BaseException) -> BaseException:
    """Cut the launcher's frames from the traceback, so that it starts in the user's code."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


def _is_ours(filename: str) -> bool:
    return Path(filename).parent in _LAUNCHER or filename == runpy.run_path.__code__.co_filename


def _report(message: str, *, code: int, reason: str, is_for_people: bool = False) -> None:
    if not _is_rank():
        return
    if not message:  # the agent adds what it wrote last
        with contextlib.suppress(Exception):  # the program may have closed it, or put another object there
            sys.stdout.flush()
    fields: dict[str, Any] = {
        "message": message.strip(),
        "reason": reason,
        "exitCode": code,
        "isForPeople": is_for_people,
        "step": heartbeat.mine.step,
        "at": datetime.now(UTC).isoformat(),
    }
    report_pipe.send({"failure": outcome.fit(fields, limit=report_pipe.MAX_BYTES - 100)}, wait_s=1.0)
