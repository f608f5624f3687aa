"""Endings of ranks -> the cause, the exit code, the termination message."""

import argparse
import asyncio
import contextlib
import io
import json
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import ModuleType, TracebackType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dtj import contract
from dtj.agent import process_end
from dtj.agent.rank import main
from dtj.agent.wire import outcome
from dtj.agent.wire.outcome import Ending
from dtj.errors import RecipeError, Stopped, is_peer_loss, lost_peer
from dtj.ranks import stop
from dtj.ranks.stop import StopFlag
from dtj.telemetry import heartbeat, report_pipe
from dtj.telemetry.heartbeat import SharedHeartbeat

START = datetime(2026, 1, 1, tzinfo=UTC)


def end(
    rank: int, code: int = 0, *, after_s: float = 0, killed: bool = False, reason: str | None = None
) -> Ending:
    number = code - 128 if code > 128 else None
    return Ending(
        rank=rank,
        code=code,
        at=START + timedelta(seconds=after_s),
        signal=number,
        by_agent=killed,
        reason=reason,
    )


@pytest.mark.parametrize(
    ("endings", "rank", "code"),
    [
        pytest.param([end(0), end(1)], None, 0, id="all done"),
        pytest.param([end(0, 75), end(1, 75)], None, 75, id="all stopped"),
        pytest.param([end(0, 75, killed=True)], None, 75, id="stopped by the agent"),
        pytest.param([end(0), end(1, 75)], None, 75, id="one was done when the others stopped"),
        pytest.param([end(0), end(1, 1)], 1, 1, id="one failed"),
        pytest.param([end(0, 1, after_s=2), end(1, 2, after_s=1)], 1, 2, id="the earlier failure"),
        pytest.param(
            [end(0, 76, after_s=1), end(1, 1, after_s=3)],
            1,
            1,
            id="a later cause takes precedence over a lost peer",
        ),
        pytest.param([end(0, 76, after_s=2), end(1, 76, after_s=1)], 1, 76, id="only lost peers: the first"),
        pytest.param(
            [end(0, 1), end(1, 137, killed=True)], 0, 1, id="a rank that the agent killed is not the cause"
        ),
        pytest.param([end(0, 75), end(1, 139)], 1, 139, id="a crash while the others stopped"),
        pytest.param([end(0, 1), end(1, 1)], 0, 1, id="at the same time: the lower rank"),
    ],
)
def test_cause_and_exit_code(endings: list[Ending], rank: int | None, code: int) -> None:
    culprit = outcome.first_cause(endings)
    assert (culprit.rank if culprit else None) == rank
    assert outcome.exit_code(endings) == code


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        pytest.param(end(0, 1, reason="Exception"), "Exception", id="an exception, as reported"),
        pytest.param(end(0, 1), "ExitCode", id="a bare exit code"),
        pytest.param(end(0, 128 + signal.SIGKILL), "Signal", id="a signal"),
        pytest.param(end(0, 137, reason="OOMKilled"), "OOMKilled", id="an OOM kill"),
        pytest.param(end(0, 76), "PeerLost", id="76"),
        pytest.param(end(0, 78), "BadRecipe", id="78"),
        pytest.param(end(0, 75), "Stopped", id="75"),
        pytest.param(end(0, 0), "Done", id="0"),
    ],
)
def test_reason_is_one_of_the_contract(ending: Ending, cause: str) -> None:
    assert ending.cause == cause
    assert cause in contract.REASONS


def test_time_without_a_zone_is_refused() -> None:
    """It could not be compared with those of other pods."""
    sent = json.loads(json.dumps(end(0).to_json()))
    assert Ending.from_json(sent) == end(0)
    with pytest.raises(ValueError, match="zone"):
        Ending.from_json(sent | {"at": "2026-01-01T00:00:00"})


def test_oom_killer_is_suspected() -> None:
    assert "out of memory" in outcome.describe(end(3, 137), 5)
    said = "rank 3 was killed by the kernel after step 5: out of memory"
    assert outcome.describe(end(3, 137, reason="OOMKilled"), 5) == said
    limited = replace(end(3, 137, reason="OOMKilled"), message="the memory limit is 1.00 GiB", step=5)
    assert outcome.summary(limited) == f"{said} (the memory limit is 1.00 GiB)"
    assert outcome.describe(end(3, 139), None) == "rank 3 was killed by SIGSEGV before its first step"
    assert outcome.describe(end(3, 143), None).endswith(
        "killed by SIGTERM before its first step (it was asked to stop)"
    )


def test_exit_without_a_message_shows_the_last_output_and_in_the_log_one_line() -> None:
    silent = replace(end(3, 42), wrote="loading\nno file", step=5)
    said = "rank 3 exited with code 42 after step 5"
    assert outcome.describe(silent, 5) == f"its last output:\nloading\nno file\n{said}"
    assert outcome.summary(silent) == said
    assert outcome.error_number(silent) == outcome.error_number(replace(silent, wrote="other")) != 0


def test_signal_without_a_name_is_shown_by_its_number() -> None:
    assert outcome.describe(end(3, 128 + 39), 5) == "rank 3 was killed by signal 39 after step 5"
    assert outcome.failure_fields(end(3, 128 + 39), generation=1, processes=1)["signal"] == "signal 39"


@given(message=st.text(min_size=0, max_size=9000))
def test_message_is_cut_to_fit_and_keeps_its_end(message: str) -> None:
    ending = Ending(rank=0, code=1, at=START, message=message)
    fields = outcome.fit(
        outcome.termination_fields([ending], ranks=range(8), reported={}, generation=1, now=START),
        limit=contract.TERMINATION_BYTES,
    )
    assert len(outcome.encode(fields)) <= contract.TERMINATION_BYTES
    if message:
        assert message.endswith(fields["message"])


def test_restarts_are_reported_only_if_they_are_known() -> None:
    known = outcome.termination_fields(
        [end(0, 3)], ranks=range(8), reported={}, generation=3, known={"in_place": 2}, now=START
    )
    unknown = outcome.termination_fields([end(0, 3)], ranks=range(8), reported={}, generation=3, now=START)
    assert (known["inPlace"], unknown["inPlace"]) == (2, None)


def test_a_life_without_a_step_reports_the_highest_step_of_the_run() -> None:
    """Or the operator would take a job that fails again at once for one that reports no steps."""
    brief = outcome.termination_fields(
        [end(0, 3)], ranks=range(8), reported={}, generation=3, known={"best_step": 7}, now=START
    )
    assert brief["step"] == 7
    assert "before its first step" in brief["message"]

    longer = [replace(end(0, 3), step=4)]
    fields = outcome.termination_fields(
        longer, ranks=range(8), reported={}, generation=3, known={"best_step": 7}, now=START
    )
    assert fields["step"] == 4


def test_short_message_is_left_whole() -> None:
    fields = outcome.termination_fields(
        [end(0, 3)], ranks=range(8), reported={"checkpoint": {"path": "/c/step-1"}}, generation=1, now=START
    )
    assert json.loads(outcome.encode(outcome.fit(fields, limit=4096))) == fields


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(RuntimeError("[pair.cc] gloo: Connection closed by peer [10.0.0.1]:5"), True, id="gloo"),
        pytest.param(RuntimeError("NCCL error: ncclRemoteError: remote process exited"), True, id="NCCL"),
        pytest.param(RuntimeError("TCPStore: wait timeout after 300000ms"), True, id="the store"),
        pytest.param(
            ConnectionResetError(104, "Connection reset by peer"), False, id="the user's own connection"
        ),
        pytest.param(
            RuntimeError("shape mismatch in gloo"), False, id="an error that is not about the network"
        ),
        pytest.param(ValueError("Connection closed by peer, says gloo"), False, id="another kind of error"),
        pytest.param(RuntimeError("feature store: connection refused"), False, id="a service of the user"),
        pytest.param(
            torch.distributed.DistNetworkError("The client socket has timed out: wait timeout"),
            True,
            id="an error type of torch",
        ),
        pytest.param(
            torch.distributed.DistNetworkError(
                "The client socket has failed to connect to any network address of (digits-0, 29500). The "
                "client socket has failed to connect to 10.9.9.9:29500 (errno: 113 - No route to host)."
            ),
            True,
            id="the pod has gone, and its network says so",
        ),
        pytest.param(
            torch.distributed.DistStoreError(
                "Timed out after 3 seconds waiting for clients. 1/2 clients joined."
            ),
            True,
            id="a rank that never came",
        ),
        pytest.param(
            RuntimeError("[gloo/transport/tcp/pair.cc:544] Read error [10.0.0.2]:1234: Connection timed out"),
            True,
            id="the pod has gone without a word",
        ),
        pytest.param(
            RuntimeError(
                "Error on Node 1: eof (this error originated at tensorpipe/transport/shm/connection.cc:259)"
            ),
            True,
            id="a peer of torch.distributed.rpc",
        ),
    ],
)
def test_lost_peer_is_distinguished_from_the_rank_s_own_fault(error: Exception, expected: bool) -> None:
    assert is_peer_loss(error) is expected


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_error_that_the_program_raised_instead_of_it_is_a_lost_peer_too(link: str) -> None:
    """`except Exception as error: raise StepError from error`, or `sys.exit(1)` there."""
    lost, between, error = RuntimeError("gloo: Connection closed by peer"), KeyError("loss"), ValueError()
    setattr(error, link, between)
    between.__context__ = lost
    assert lost_peer(error) is lost
    lost.args = ("the loss is too large",)
    lost.__context__ = error  # a circle, as `raise error from error` makes it
    assert lost_peer(error) is None


@pytest.fixture
def own_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook of this process, which a rank replaces, comes back."""
    for name in ("excepthook", "__excepthook__"):
        monkeypatch.setattr(sys, name, getattr(sys, name))


def _lose_peer() -> None:
    loop = asyncio.new_event_loop()
    native = loop.create_future()
    native.set_exception(RuntimeError("gloo: Connection closed by peer"))
    try:
        native.result()
    finally:
        loop.close()


def _divide() -> None:
    raise ZeroDivisionError("no samples")


def _interrupt() -> None:
    signal.default_int_handler(signal.SIGINT, None)


def _interrupt_twice() -> None:
    flag = StopFlag()
    for _ in range(2):
        flag._handle(signal.SIGINT, None)


def _interrupt_itself() -> None:
    raise KeyboardInterrupt


def _refuse() -> None:
    raise RecipeError("seed is -1")


@pytest.mark.usefixtures("own_hook")
@pytest.mark.parametrize(
    ("fail", "code", "shown"),
    [
        pytest.param(_divide, 1, True, id="an exception"),
        pytest.param(_lose_peer, contract.EXIT_PEER_LOST, False, id="a lost peer"),
        pytest.param(_refuse, contract.EXIT_BAD_RECIPE, False, id="an error that the agent prints"),
        pytest.param(_interrupt, 128 + signal.SIGINT, False, id="Ctrl-C"),
        pytest.param(_interrupt_twice, 128 + signal.SIGINT, False, id="Ctrl-C again, in training"),
        pytest.param(_interrupt_itself, 128 + signal.SIGINT, True, id="an interrupt of the program's own"),
    ],
)
def test_uncaught_exception_goes_through_the_hook_that_the_program_has_set(
    capsys: pytest.CaptureFixture[str], fail: Callable[[], None], code: int, shown: bool
) -> None:
    """wandb, for example, else shows a run that crashed as finished."""
    found: list[tuple[object, ...]] = []

    def program() -> None:
        before = sys.excepthook
        assert before is sys.__excepthook__  # or wandb would call it beside its own

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            found.append((kind, error, trace))
            with contextlib.redirect_stderr(io.StringIO()):  # as torch.distributed, to add the rank
                before(kind, error, trace)
            sys.exit(5)  # too late to be the exit code

        sys.excepthook = hook
        fail()

    assert main._run(program) == code
    # Exit functions look there for what went wrong.
    assert found == [(sys.last_type, sys.last_value, sys.last_traceback)]
    assert capsys.readouterr().err.count("Traceback") == shown


@pytest.mark.usefixtures("own_hook")
def test_what_a_failed_function_holds_goes_after_the_exit_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that goes before waits for its processes, and a file that never goes is incomplete."""
    gone: list[str] = []

    def program() -> None:
        held = ModuleType("held")
        weakref.finalize(held, gone.append, "held")
        _divide()

    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    assert main._run(program) == 1
    assert gone == []
    process_end.let_go(ModuleType("__main__"))
    assert gone == ["held"]


def _exit_in_handler() -> None:
    """As Hydra and click, which print the exception first."""
    try:
        _divide()
    except ZeroDivisionError:
        sys.exit(3)


def _exit_instead() -> None:
    try:
        _divide()
    except ZeroDivisionError:
        raise SystemExit(3) from None


def _parse(*words: str) -> None:
    parser = argparse.ArgumentParser("train.py")
    parser.add_argument("--lr", type=float)
    parser.parse_args(words)


@pytest.mark.usefixtures("own_hook")
@pytest.mark.parametrize(
    ("program", "cause"),
    [
        pytest.param(
            partial(_parse, "--epoch=3"),
            "train.py: error: unrecognized arguments: --epoch=3",
            id="argparse, an argument",
        ),
        pytest.param(
            partial(_parse, "--lr=x"),
            "train.py: error: argument --lr: invalid float value: 'x'",
            id="argparse, a value",
        ),
    ],
)
@pytest.mark.parametrize(
    ("env", "step", "code", "reason"),
    [
        ({}, None, 78, "BadRecipe"),
        ({"DTJ_GENERATION": "1", "DTJ_ATTEMPT": "0", "DTJ_RESTARTS": "0"}, None, 78, "BadRecipe"),
        ({}, 3, 2, "ExitCode"),
        ({"DTJ_GENERATION": "2"}, None, 2, "ExitCode"),
        ({"DTJ_RESTARTS": "1"}, None, 2, "ExitCode"),
        ({"DTJ_ATTEMPT": "1"}, None, 2, "ExitCode"),
    ],
)
def test_wrong_arguments_are_not_retried_unless_the_program_has_begun_with_them_before(
    monkeypatch: pytest.MonkeyPatch, program: Callable[[], None], cause: str,
    env: dict[str, str], step: int | None, code: int, reason: str,
) -> None:  # fmt: skip
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(report_pipe, "send", lambda fields, **_: reports.append(fields["failure"]))
    monkeypatch.setattr(heartbeat, "mine", SharedHeartbeat())
    if step is not None:
        heartbeat.mine.stepped(step)
    assert main._run(program) == code
    [report] = reports
    assert (report["reason"], report["exitCode"]) == (reason, code)
    assert cause in report["message"]


@pytest.mark.usefixtures("own_hook")
@pytest.mark.parametrize(
    ("program", "cause"),
    [
        pytest.param(_exit_in_handler, "ZeroDivisionError: no samples", id="while it handled an exception"),
        pytest.param(_exit_instead, "", id="instead of an exception"),
        pytest.param(lambda: sys.exit(3), "", id="with a code only"),
    ],
)
def test_exit_code_is_reported_with_the_exception_that_led_to_it(
    monkeypatch: pytest.MonkeyPatch, program: Callable[[], None], cause: str
) -> None:
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(report_pipe, "send", lambda fields, **_: reports.append(fields["failure"]))
    assert main._run(program) == 3
    [report] = reports
    assert (report["reason"], report["message"].rpartition("\n")[2]) == ("ExitCode", cause)


def _exit_after_stop(code: int) -> None:
    try:
        stop.leave(code)
    finally:
        sys.exit(0)


def _return_after_stop(code: int) -> None:
    with contextlib.suppress(Stopped):
        stop.leave(code)


@pytest.mark.usefixtures("own_hook")
@pytest.mark.parametrize("program", [_exit_after_stop, _return_after_stop])
@pytest.mark.parametrize(("code", "reasons"), [(75, []), (143, ["ExitCode"])])
def test_program_that_catches_a_stop_is_not_done(
    monkeypatch: pytest.MonkeyPatch, program: Callable[[int], None], code: int, reasons: list[str]
) -> None:
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(report_pipe, "send", lambda fields, **_: reports.append(fields["failure"]))
    assert main._run(partial(program, code)) == code
    assert [report["reason"] for report in reports] == reasons


@pytest.mark.usefixtures("own_hook")
def test_rank_that_exits_because_it_lost_a_peer_is_not_the_cause() -> None:
    def program() -> None:
        try:
            _lose_peer()
        except RuntimeError:
            sys.exit(1)

    assert main._run(program) == contract.EXIT_PEER_LOST


def test_error_that_the_program_raises_itself_is_its_own_fault() -> None:
    """Whatever it says: only torch and native code know of a lost peer."""
    with pytest.raises(RuntimeError) as raised:
        raise RuntimeError("gloo: Connection closed by peer")
    assert not is_peer_loss(raised.value)


def test_error_of_native_code_that_the_program_called_is_a_lost_peer() -> None:
    """As from `work.wait()`: asyncio's future, too, is native code that raises a given error."""
    with pytest.raises(RuntimeError) as raised:
        _lose_peer()
    assert is_peer_loss(raised.value)


@pytest.mark.parametrize(
    ("own", "expected"),
    [([end(2, 139, after_s=0.2)], True), ([end(2, 139, after_s=-0.2)], False), ([], True)],
)
def test_earlier_failure_of_another_pod_is_repeated_beside_an_own_one(
    own: list[Ending], expected: bool
) -> None:
    """The operator may see this pod's end first, and would blame its rank."""
    culprit = end(1, 5)
    assert outcome.came_first(culprit, own, ranks=range(2, 4)) is expected
    assert not outcome.came_first(culprit, own, ranks=range(2))


def _raise_group() -> None:
    raise ExceptionGroup("two loaders", [ValueError("a"), TypeError("b")])


def _raise_with_lines() -> None:
    error = RuntimeError(
        "CUDA error: out of bounds\nCUDA kernel errors might be reported later.\n  1. launch"
    )
    error.add_note("step 3")
    raise error


@pytest.mark.parametrize(
    ("fail", "line"),
    [
        (_raise_with_lines, "RuntimeError: CUDA error: out of bounds"),
        (
            lambda: torch.nn.Linear(2, 1).load_state_dict({"weight": torch.ones(1, 2)}),
            'RuntimeError: Error(s) in loading state_dict for Linear: Missing key(s) in state_dict: "bias".',
        ),
        (_raise_group, "ExceptionGroup: two loaders (2 sub-exceptions)"),
        (lambda: compile("def f(:", "train.py", "exec"), "SyntaxError: invalid syntax"),
    ],
)
def test_headline_of_a_traceback_is_the_first_line_of_its_error(
    fail: Callable[[], object], line: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any type
        fail()
    text = "".join(traceback.format_exception(caught.value))
    assert outcome.headline(text) == line


def test_headline_without_a_traceback_is_the_last_line() -> None:
    assert outcome.headline("usage: train.py\nerror: no data") == "error: no data"
    assert outcome.headline("no module 'a'\n  fix: install it") == "no module 'a'; fix: install it"
