"""The coordinator's ledger of a job's time, compared with the logs of steps that the ranks write."""

from datetime import datetime
from pathlib import Path

from tests.bench.goodput_truth import Line, parse, productive
from tests.process.dtj.conftest import PROGRAMS, Start, free_port, wait_for
from tests.process.dtj.test_status_server import status

STEPS, STEP_S = 60, 0.2


def test_ledger_is_within_one_percent_and_a_step_of_the_ranks_books(start: Start, tmp_path: Path) -> None:
    """Five crashes, including one of rank 0 and one of two ranks at once.

    A step takes four times as long as the agent's polling interval: on a busy machine the agent polls late.
    """
    port = free_port()
    flags = ("run", "--nproc", 3, "--max-restarts", 9, "--port", port, PROGRAMS / "pace.py")
    env = {"STEPS": STEPS, "STEP_S": STEP_S, "FACTORS": "1 1 1", "OUT": tmp_path}
    command = start(*flags, FAULTS="1@7 2@18 0@28 1@40 2@40", **env)

    def books() -> list[list[Line]]:
        texts = [(tmp_path / f"book-{rank}").read_text() for rank in range(3)]
        return [parse(text) for text in texts]

    wait_for(lambda: all((tmp_path / f"book-{rank}").exists() for rank in range(3)), "all ranks to start")
    wait_for(lambda: any(line.step == STEPS for line in books()[0]), "the last step")
    last = next(line.at for line in books()[0] if line.step == STEPS)
    truth = productive(books(), until=last)

    def is_reported() -> bool:  # the step before the last; the agent counts the last step as unfinished
        return bool(status(port).get("step") == STEPS - 1 and status(port)["ledger"])

    wait_for(is_reported, "the step before to be reported")
    found = status(port)
    under_way = datetime.fromisoformat(found["at"]).timestamp() - last
    said = found["ledger"]["productive"] - under_way
    (tmp_path / "go").touch()
    ended = command.wait()
    assert ended.code == 0, ended.err
    assert ended.err.count("dtj: generation ") >= 4
    # On a busy machine a step may end while another rank starts again, and then count either way.
    assert abs(said - truth) < 0.01 * truth + STEP_S, (said, truth, found["ledger"])
