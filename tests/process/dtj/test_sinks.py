"""Sinks of services, offline, and DDP's options."""

import re
from collections.abc import Callable
from pathlib import Path

from tests.process.dtj.conftest import Finished

Finish = Callable[..., Finished]

LINES = """
import dtj
from dtj import sinks

run = dtj.init(log_every=1)
run.on_line({sink})
for _ in run.steps(3):
    run.log(loss=run.step / 2)
"""


def test_weights_and_biases_gets_the_lines_offline(finish: Finish, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LINES.format(sink='sinks.WandB(project="test", mode="offline", config={"lr": 0.1})'))
    ended = finish("run", "--nproc", 2, program, WANDB_DIR=tmp_path, WANDB_SILENT="true")
    assert ended.code == 0, ended.err
    (run,) = tmp_path.glob("wandb/offline-run-*")
    assert list(run.glob("*.wandb"))


def test_mlflow_gets_the_lines_in_a_folder(finish: Finish, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LINES.format(sink='sinks.MLflow(config={"lr": 0.1})'))
    ended = finish(
        "run",
        "--nproc",
        2,
        program,
        MLFLOW_TRACKING_URI=(tmp_path / "ml").as_uri(),
        MLFLOW_ALLOW_FILE_STORE="true",
        MLFLOW_DISABLE_TELEMETRY="true",
    )
    assert ended.code == 0, ended.err
    (losses,) = tmp_path.glob("ml/*/*/metrics/loss")
    assert [line.split()[1:] for line in losses.read_text().splitlines()] == [
        ["0.0", "1"],
        ["0.5", "2"],
        ["1.0", "3"],
    ]


OPTIONS = """
import json, torch, dtj


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        self.register_buffer("mine", torch.zeros(1))

    def forward(self, x):
        return self.used(x)


run = dtj.init()
model = run.parallel(Two(), find_unused_parameters=OPTION, forward_sync_buffers=False)
layer = torch.nn.Linear(1, 1)  # with values of types that gloo does not send
layer.register_buffer("codes", torch.full((3,), run.rank, dtype=torch.int16))
base = torch.full((2,), float(run.rank)).to(torch.float8_e4m3fn)
layer.base = torch.nn.Parameter(base, requires_grad=False)
fixed = run.parallel(layer, static_graph=True)
first = [*layer.codes.tolist(), *layer.base.float().tolist()]
run.unwrap(model).mine.fill_(run.rank)
layer.codes.fill_(7 + run.rank)
run.data(torch.ones(8, 1), global_batch=4)
for batch in run.steps(2):
    run.backward(lambda mb: (model(mb) + fixed(mb)).mean(), batch)
print("mine", run.unwrap(model).mine.tolist(), first, layer.codes.tolist())
"""


def test_options_of_ddp_and_values_of_all_types(finish: Finish, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(OPTIONS.replace("OPTION", "True"))
    ended = finish("run", "--nproc", 2, program)
    assert ended.code == 0, ended.err
    of_rank_0 = "[0, 0, 0, 0.0, 0.0] [7, 7, 7]"
    assert sorted(re.findall(r"mine (.*)", ended.out)) == [f"[0.0] {of_rank_0}", f"[1.0] {of_rank_0}"]
