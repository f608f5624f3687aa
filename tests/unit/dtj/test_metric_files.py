"""Files of logged steps, and their plot."""

import io
import json
import sys
from pathlib import Path

import pytest

from dtj.cli.plot import curves_of, plot
from dtj.errors import RecipeError
from dtj.telemetry import metric_files

READING = {
    **{"step": 4, "totalSteps": 9, "epoch": 0, "loss": 0.5, "samplesPerSecond": 8.0, "mfu": None},
    "metrics": {"accuracy": 0.25},
}


def test_plot_shows_zeros_and_omits_missing_values() -> None:
    lines = [READING | {"metrics": {"accuracy": 0.0}}, READING | {"step": 5, "loss": None, "metrics": {}}]
    assert curves_of(lines) == {
        "loss": [(4, 0.5)],
        "accuracy": [(4, 0.0)],
        "samples/s": [(4, 8.0), (5, 8.0)],
    }


def test_table_gets_a_column_for_a_later_value_also_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    metric_files.open_for(str(file), step=0).write(READING | {"metrics": {}})
    again = metric_files.open_for(str(file), step=4)
    again.write(READING | {"step": 5})
    again.write(READING | {"step": 6, "metrics": {}})
    assert file.read_text().splitlines() == [
        "step,epoch,loss,samplesPerSecond,accuracy",
        "4,0,0.5,8.0,",
        "5,0,0.5,8.0,0.25",
        "6,0,0.5,8.0,",
    ]


def test_table_takes_any_name_whatever_the_locale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(io, "text_encoding", lambda encoding, *_: encoding or "ascii")
    file = tmp_path / "run.csv"
    for _ in range(2):
        metric_files.open_for(str(file), step=0).write(READING | {"metrics": {"Größe": 1.0}})
    assert file.read_bytes().decode().splitlines()[0] == "step,epoch,loss,samplesPerSecond,Größe"


def test_metric_with_the_name_of_a_field_is_a_curve_and_changes_no_step(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    reading = READING | {"epoch": 2, "metrics": {"step": 7.0, "epoch": 1.5, "totalSteps": 3.0}}
    metric_files.open_for(str(file), step=0).write(reading)
    assert file.read_text().splitlines() == ["step,epoch,loss,samplesPerSecond,totalSteps", "4,2,0.5,8.0,3.0"]
    assert dict(metric_files.curves(reading))["epoch"] == 1.5


def test_event_files_hide_the_steps_that_a_restart_repeats(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    target = f"tensorboard:{tmp_path}"
    first = metric_files.open_for(target, step=0)
    for step in (1, 2, 3):
        first.write(READING | {"step": step, "loss": float(step)})
    again = metric_files.open_for(target, step=2)  # step 3 was not committed
    again.write(READING | {"step": 3, "loss": 7.0})
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert sorted(found.Tags()["scalars"]) == ["accuracy", "loss", "samplesPerSecond"]
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [(1, 1.0), (2, 2.0), (3, 7.0)]


def test_error_for_missing_tensorboard_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # makes the import fail
    for name in [n for n in sys.modules if n.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        RecipeError, match=r"the package tensorboard is not installed\n.*pip install tensorboard"
    ):
        metric_files.open_for(f"tensorboard:{tmp_path}", step=0)


def test_plot_of_an_unknown_format_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    metric_files.JsonLines(file, step=0).write(READING)
    with pytest.raises(
        RecipeError,
        match=r"run\.doc: Format 'doc' is not supported.*\n  fix: choose a file name that ends in .png",
    ):
        plot(file, tmp_path / "run.doc")


def test_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    written = metric_files.JsonLines(file, step=3)
    written.write(READING)
    with file.open("a") as torn:
        torn.write(json.dumps({"step": 5})[:-3])
    assert [line["step"] for line in metric_files.read(file)] == [3, 4]


def test_file_that_cannot_be_written_is_rejected_when_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecipeError, match=r"cannot be written: .*\n.*writable folder"):
        metric_files.open_for(str(tmp_path / "file" / "run.jsonl"), step=0)
    with pytest.raises(RecipeError, match="has no logged steps"):
        metric_files.read(tmp_path / "nothing")


def test_full_disk_does_not_keep_a_run_from_starting(capsys: pytest.CaptureFixture[str]) -> None:
    metric_files.open_for("/dev/full", step=0).write(READING)
    assert "--metrics /dev/full cannot be written: No space left on device; training continues" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("name", ["run.jsonl", "run.csv", "tensorboard:events"])
def test_run_that_starts_again_writes_as_soon_as_it_can(tmp_path: Path, name: str) -> None:
    """A volume that went read-only, for example, does not end a run that can do without."""
    kind, colon, file = name.rpartition(":")
    folder = tmp_path / "folder"
    folder.touch()
    written = metric_files.open_for(f"{kind}{colon}{folder / file}", step=3)
    written.write(READING)
    folder.unlink()
    written.write(READING | {"step": 5})
    assert (folder / file).exists()


def test_lines_that_are_not_of_a_run_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_bytes(b'3\n[1]\nnull\n\xff\xfe\n{"step": 1}\n{"step": 2, "metrics": {}}\n{"step": 3, "met')
    assert metric_files.read(file) == [{"step": 2, "metrics": {}}]
