"""Ready targets of `run.on_line`: TensorBoard, Weights & Biases, MLflow.

    from dtj import sinks
    run.on_line(sinks.WandB(project="digits", config={"lr": 0.1}))

Each imports its package and opens its target with the first line, so only on rank 0. If the package is not
installed, every rank gets a RecipeError at once.
"""

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dtj.errors import RecipeError

# step -> what was logged for it, and rates; NaN and infinities are left out
OnLine = Callable[[int, dict[str, float]], None]


class TensorBoard:
    """Event files in a folder. TensorBoard hides the steps that are repeated after a restart.

    config  hyper-parameters, shown once as a text
    """

    def __init__(self, folder: str | Path, *, config: Mapping[str, Any] | None = None) -> None:
        _check_installed("tensorboard")
        self._folder, self._config = folder, config
        self._writer: Any = None

    def __call__(self, step: int, values: dict[str, float]) -> None:
        if self._writer is None:
            self.open(step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def open(self, step: int) -> None:
        """Open the first file. Called for the first line, which is of `step`; OSError if it cannot be."""
        tensorboard = import_module("torch.utils.tensorboard")
        self._writer = tensorboard.SummaryWriter(self._folder, purge_step=step)
        if self._config:
            config = json.dumps(dict(self._config), indent=2, default=str)
            self._writer.add_text("config", f"```\n{config}\n```", step)


class WandB:
    """A run of Weights & Biases.

    config  hyper-parameters
    init    further arguments of wandb.init, e.g. project="digits", mode="offline". For a restarted job to
            continue the same run: id="...", resume="allow"
    """

    def __init__(self, *, config: Mapping[str, Any] | None = None, **init: Any) -> None:
        _check_installed("wandb")
        self._init, self._run = {"config": dict(config or {})} | init, None

    def __call__(self, step: int, values: dict[str, float]) -> None:
        self._run = run = self._run or import_module("wandb").init(**self._init)
        run.log(values, step=step)


class MLflow:
    """A run of MLflow, at the server or in the database of MLFLOW_TRACKING_URI.

    config  hyper-parameters
    start   further arguments of mlflow.start_run, e.g. run_name="digits". MLFLOW_RUN_ID continues a run
    """

    def __init__(self, *, config: Mapping[str, Any] | None = None, **start: Any) -> None:
        _check_installed("mlflow")
        self._config, self._start, self._mlflow = config, start, None

    def __call__(self, step: int, values: dict[str, float]) -> None:
        self._mlflow = mlflow = self._mlflow or self._begin()
        mlflow.log_metrics(values, step=step)

    def _begin(self) -> Any:
        mlflow: Any = import_module("mlflow")
        mlflow.start_run(**self._start)
        if self._config:
            mlflow.log_params(dict(self._config))
        return mlflow


def _check_installed(package: str) -> None:
    if find_spec(package) is None:
        raise RecipeError(f"the package {package} is not installed", fix=f"pip install {package}")
