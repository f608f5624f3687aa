"""What the stacks of a rank say about where its main thread is, and about its collectives."""

import sysconfig
import threading

import pytest
import torch
import torch.distributed

from dtj.agent.rank.frames import collectives_of, place_of, without_callers
from dtj.agent.rank.own_stacks import collectives, stacks_of_others
from dtj.agent.wire.probe import NOWHERE, Place
from dtj.cli import program

LIBRARY = sysconfig.get_path("purelib") + "/torch/nn/modules/linear.py"
# As torch 2.11 wrote it on an H100, in a rank that waited for its peer.
NCCL = (
    b'{"comm_lib_version":"2.28.9","nccl_comm_state":{},'
    b'"pg_config":{"0":{"desc":"default_pg","name":"0","ranks":"[0, 1]"}},'
    b'"pg_status":{"0":{"last_completed_collective":"3","last_enqueued_collective":"4",'
    b'"last_started_collective":"-1"}},"version":"2.10"}'
)
FUNCTIONAL = sysconfig.get_path("purelib") + "/torch/distributed/_functional_collectives.py"


def frame(file: str, line: int = 7, function: str = "run") -> str:
    return f'  File "{file}", line {line} in {function}'


def stacks(*threads: list[str], main: str = "Current thread") -> str:
    """Stacks as faulthandler prints them: the main thread last, its innermost frame first."""
    names = ["Thread"] * (len(threads) - 1) + [main]
    return "\n\n".join(
        "\n".join([f"{name} 0x1 (most recent call first):", *frames])
        for name, frames in zip(names, threads, strict=True)
    )


def test_stacks_end_where_the_program_begins() -> None:
    users, ours = frame("/app/train.py"), [frame(program.__file__), frame("/lib/click/core.py")]
    module = [frame("<frozen runpy>"), frame("<frozen runpy>")]
    for calls in (ours, [*module, *ours]):
        text = stacks([frame("/app/other.py")], [users, *calls], main="Main thread") + "\nNCCL group 0: 1\n"
        short = stacks([frame("/app/other.py")], [users], main="Main thread") + "\nNCCL group 0: 1\n"
        assert without_callers(text) == short
    for whole in (stacks(ours), stacks([users, frame("/lib/atexit.py")])):
        assert without_callers(whole) == whole, "it does not run the program"


def test_threads_have_names_and_our_idle_one_no_frames() -> None:
    """One that opens process groups shows which peer it cannot reach, while the main thread waits for it."""
    is_over = threading.Event()
    names = ("loads", "dtj-opens-groups", "dtj-control-pipe")
    threads = [threading.Thread(target=is_over.wait, name=name) for name in names]
    for thread in threads:
        thread.start()
    blocks = stacks_of_others().split("\n\n")
    is_over.set()
    for thread in threads:
        thread.join()
    *shown, idle = (next(each for each in blocks if f"[{thread.name}]" in each) for thread in threads)
    assert all("threading.py" in each for each in shown)
    assert idle.strip() == f"Thread 0x{threads[2].ident:016x} [dtj-control-pipe]"


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        pytest.param(
            [
                [frame("/app/other.py")],
                [frame("/app/train.py", 9, "load"), frame("/app/train.py", 20, "main")],
            ],
            ("/app/train.py:9 in load", ""),
            id="innermost frame of the main thread",
        ),
        pytest.param(
            [[frame("/app/other.py")], [frame("/lib/threading.py"), frame("/app/train.py", 9, "load")]],
            ("/app/train.py:9 in load", ""),
            id="the caller of a function that waits",
        ),
        pytest.param(
            [[frame("/lib/torch/futures/__init__.py", 80, "wait"), frame("/app/train.py", 9, "load")]],
            ("/app/train.py:9 in load", ""),
            id="the caller of a function of torch that waits",
        ),
        pytest.param(
            [[frame("/lib/concurrent/futures/_base.py", 305, "wait"), frame("/app/train.py", 9, "load")]],
            ("/app/train.py:9 in load", ""),
            id="the caller of a function that waits for a thread",
        ),
        pytest.param(
            [[frame("/lib/queue.py")]],
            ("/lib/queue.py:7 in run", ""),
            id="only functions that wait",
        ),
        pytest.param(
            [[frame(LIBRARY, 134, "forward"), frame("/app/train.py", 33, "evaluate"), frame("/app/a.py")]],
            (f"{LIBRARY}:134 in forward", "/app/train.py:33 in evaluate"),
            id="the user's line that called a library",
        ),
        pytest.param(
            [
                [
                    frame("/lib/torch/_ops.py"),
                    frame("/lib/torch/_library/autograd.py"),
                    frame(FUNCTIONAL, 143, "wait_tensor"),
                    frame("/app/train.py", 33, "loss"),
                ]
            ],
            (f"{FUNCTIONAL}:143 in wait_tensor", "/app/train.py:33 in loss"),
            id="the caller of an operator, such as a wait for a collective of tensor parallel",
        ),
        pytest.param([[frame("/app/other.py")], []], ("", ""), id="main thread without a frame"),
        pytest.param([[]], ("", ""), id="no frame at all"),
    ],
)
def test_stacks_name_one_place(threads: list[list[str]], expected: tuple[str, str]) -> None:
    assert place_of(stacks(*threads))[:2] == expected


def test_place_is_unknown_if_the_main_thread_is_missing() -> None:
    """The pipe was full, or there are more threads than faulthandler writes."""
    assert place_of(stacks([frame("/app/loader.py")], main="Thread")) == NOWHERE
    assert place_of("") == NOWHERE


def path(*frames: str) -> int:
    return place_of(stacks(list(frames))).path


def test_path_changes_with_the_calls_but_not_within_one_function() -> None:
    outer = frame("/app/train.py", 20, "main")
    loop = path(frame("/app/train.py", 9, "spin"), outer)
    assert path(frame("/app/train.py", 10, "spin"), outer) == loop, "two lines of an endless loop"
    assert path(frame("/app/train.py", 9, "other"), outer) != loop
    assert path(frame("/app/train.py", 9, "spin"), frame("/app/train.py", 21, "main")) != loop


def test_text_names_the_callers_line() -> None:
    assert Place("/lib/a.py:1 in f").text == "/lib/a.py:1 in f"
    assert (
        Place("/lib/a.py:1 in f", "/app/b.py:2 in g").text == "/lib/a.py:1 in f, called from /app/b.py:2 in g"
    )


def test_rank_tells_its_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_says(monkeypatch, NCCL)
    written = f"{stacks([frame('/app/train.py')])}\n\n{collectives()}"
    assert collectives_of(written) == {"0": (4, 3)}
    assert place_of(written).frame == "/app/train.py:7 in run"


@pytest.mark.parametrize("says", [b"{}", b"no JSON", b'{"pg_status": {"0": {}}, "pg_config": {}}'])
def test_rank_without_nccl_tells_none(monkeypatch: pytest.MonkeyPatch, says: bytes) -> None:
    torch_says(monkeypatch, says)
    assert not collectives()


def torch_says(monkeypatch: pytest.MonkeyPatch, says: bytes) -> None:
    name = "_dump_nccl_trace_json"
    monkeypatch.setattr(torch._C._distributed_c10d, name, lambda **_: says, raising=False)
