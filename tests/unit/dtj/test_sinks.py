"""Callbacks of run.on_line, and the ready ones that open no process."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import dtj
from dtj import sinks


def test_tensorboard_has_values_by_step_and_the_config_once(tmp_path: Path) -> None:
    sink = sinks.TensorBoard(tmp_path, config={"lr": 0.1})
    sink(1, {"loss": 2.0})
    sink(2, {"loss": 1.0, "accuracy": 0.5})
    (file,) = tmp_path.iterdir()
    events = EventAccumulator(str(file))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("loss")] == [(1, 2.0), (2, 1.0)]
    assert [each.step for each in events.Scalars("accuracy")] == [2]
    ((text,)) = events.Tensors("config/text_summary")
    assert b'"lr": 0.1' in text.tensor_proto.string_val[0]


@pytest.mark.parametrize(("sink", "package"), [(sinks.WandB, "wandb"), (sinks.MLflow, "mlflow")])
def test_missing_package_is_refused_at_once(
    sink: type[sinks.WandB] | type[sinks.MLflow], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "find_spec", lambda _: None)
    with pytest.raises(dtj.RecipeError, match=f"the package {package} is not installed"):
        sink(config={})
