"""Runs with checkpoints on an S3 server that refuses requests, and kills in the middle of a save."""

import threading
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch

from dtj.checkpoint import reader
from dtj.checkpoint.objects import locate
from tests.process.dtj.conftest import PROGRAMS, Finished, Start
from tests.process.dtj.programs import saves
from tests.support import s3
from tests.support.checkpoints import found
from tests.support.commands import DEADLINE_S

Finish = Callable[..., Finished]


@pytest.fixture(scope="session")
def server() -> Iterator[s3.Server]:
    """One server for a worker, which may leave this module and enter it again: fsspec keeps the first one."""
    with s3.serving() as server:
        yield server


@pytest.mark.parametrize(
    ("flags", "last"),
    [
        pytest.param((), "state.pt", id="whole state, killed while it is sent"),
        pytest.param(("--nproc", 2, "--parallel", "fsdp"), "step-6", id="shards, killed before the commit"),
    ],
)
def test_run_on_s3_resumes_bit_identically_to_a_run_in_a_folder(
    server: s3.Server, start: Start, finish: Finish, tmp_path: Path, flags: tuple[object, ...], last: str
) -> None:
    """The store refuses the first requests, and the job is killed during the save of step 6."""
    url = f"s3://{s3.BUCKET}/{tmp_path.name}"

    def train(begin: Callable[..., Any], where: object, out: str, steps: int) -> Any:
        (tmp_path / out).mkdir(exist_ok=True)
        command = ("run", *flags, "--checkpoint", where, "--save-every", 2, PROGRAMS / "gpt.py")
        imports = ["s3fs"] if where == url else []
        return begin(*command, OUT=tmp_path / out, STEPS=steps, imports=imports, **server.environment)

    for steps in (4, 7):
        assert train(finish, tmp_path / "run", "folder", steps).code == 0

    refused: list[str] = []

    def refuse_three(request: str) -> bool:
        refused.append(request)
        return len(refused) <= 3

    server.before = refuse_three
    with server.holding(
        lambda each: each.startswith("PUT") and "step-6" in each and each.endswith(last)
    ) as reached:
        job = train(start, url, "store", 7)
        assert reached.wait(DEADLINE_S), job.err
        job.kill()
    ended = train(finish, url, "store", 7)
    assert ended.code == 0, ended.err
    assert f"resuming from {url}/step-4" in ended.err
    assert len(refused) > 3

    for rank in range(2 if flags else 1):
        store, folder = (
            (tmp_path / out / f"trace-{rank}").read_text().splitlines() for out in ("store", "folder")
        )
        assert store[-3:] == folder[-3:], "the losses and weights of steps 5, 6 and 7"
    files = [tmp_path / "store.pt", tmp_path / "folder.pt"]
    for source, file in zip((url, tmp_path / "run"), files, strict=True):
        assert finish("export", source, file, **server.environment).code == 0
    one, other = (torch.load(file) for file in files)
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_writer_that_is_killed_between_two_parts_of_an_upload_leaves_the_checkpoint_before(
    server: s3.Server, warm: ForkServerContext
) -> None:
    run, is_second = f"s3://{s3.BUCKET}/parts", threading.Event()
    claimed = warm.RawValue("q", 0)
    env = server.environment | {"FSSPEC_S3": '{"default_block_size": 5242880}'}

    def is_second_part(request: str) -> bool:
        if not (request.startswith("PUT") and "/step-2." in request):
            return False
        was_set = is_second.is_set()
        is_second.set()
        return was_set

    with server.holding(is_second_part) as reached:
        writer = warm.Process(target=saves.for_ever, args=(run, 1, 3_000_000, claimed, env))
        writer.start()
        assert reached.wait(DEADLINE_S)
        writer.kill()
        writer.join()
    assert found(locate(run)) == ("step-1", [])
    state = reader.read(locate(run) / "step-1")
    assert torch.equal(state["parts"]["w"], torch.ones(3_000_000))
