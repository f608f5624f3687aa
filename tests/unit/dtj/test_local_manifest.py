"""What of a job's manifest applies on one machine, and that nothing of it is dropped silently."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.cli import commands as cli
from dtj.errors import RecipeError
from dtj.local.manifest import LocalJob, environment, expand, load, parse, shared
from dtj.local.replicas import is_lost, words

EXAMPLES = Path(__file__).parents[3] / "examples"


def job(
    *, container: dict[str, Any] | None = None, pod: dict[str, Any] | None = None, **spec: Any
) -> LocalJob:
    trainer = {"name": "trainer", "args": ["run", "train.py"], **(container or {})}
    template = {"spec": {"containers": [trainer], **(pod or {})}}
    return parse({"metadata": {"name": "digits"}, "spec": {"template": template, **spec}})


def variables(found: LocalJob, index: int = 0, lost: int = 0) -> dict[str, str]:
    return environment(found, index=index, uid="u", port=5000, agent_port=6000, lost=lost)


@pytest.mark.parametrize(
    ("found", "ignored"),
    [
        pytest.param(job(), (), id="nothing"),
        pytest.param(
            job(container={"image": "a", "resources": {}, "volumeMounts": []}, pod={"volumes": []}),
            (
                "spec.template.spec.volumes",
                "spec.template.spec.containers[0].image",
                "spec.template.spec.containers[0].resources",
                "spec.template.spec.containers[0].volumeMounts",
            ),
            id="what only a pod has",
        ),
        pytest.param(
            job(checkpoint={"volume": {}}, suspend=True, recovery={"maxRestarts": 2, "scope": "Job"}),
            ("spec.checkpoint", "spec.suspend", "spec.recovery.scope"),
            id="what only the operator does",
        ),
        pytest.param(
            job(pod={"containers": [{"name": "side"}, {"name": "trainer", "args": ["run", "a.py"]}]}),
            ("spec.template.spec.containers[0].name",),
            id="a second container",
        ),
        pytest.param(
            job(container={"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]}),
            ("spec.template.spec.containers[0].env[0].valueFrom",),
            id="a variable from elsewhere",
        ),
    ],
)
def test_fields_without_effect_are_listed(found: LocalJob, ignored: tuple[str, ...]) -> None:
    assert found.ignored == ignored


def test_variables_of_the_container_may_refer_to_those_of_the_job() -> None:
    env = [{"name": "A", "value": "$(DTJ_REPLICA_INDEX)"}, {"name": "B", "value": "$(A)-$(NONE)-$$(A)"}]
    found = variables(job(container={"env": env}, replicas=2), index=1)
    assert (found["A"], found["B"]) == ("1", "1-$(NONE)-$(A)")
    assert expand("--dir=$(A)", found) == "--dir=1"


def test_variables_that_are_the_same_in_all_replicas() -> None:
    """They are set before libraries read them, so they may not refer to others."""
    env = {"A": "a$$b", "B": "$(A)/c", "C": "$(NODE_RANK)", "D": "$(C)", "E": "$(LATER)", "LATER": "x"}
    container = {"env": [{"name": name, "value": value} for name, value in env.items()]}
    assert shared(job(container=container)) == {"A": "a$b", "B": "a$b/c", "LATER": "x"}


def test_replacement_has_less_budget_and_counts_as_newer() -> None:
    found = variables(job(recovery={"maxRestarts": 3}), lost=2)
    assert (found["DTJ_MAX_RESTARTS"], found["DTJ_RESTARTS"]) == ("1", "2")


def test_agents_know_the_replicas_that_decide_the_success() -> None:
    found = variables(job(replicas=3, successPolicy={"replicas": [2, 0]}))
    assert found["DTJ_SUCCESS_REPLICAS"] == "0,2"
    assert "DTJ_SUCCESS_REPLICAS" not in variables(job())


def test_processes_are_counted_as_the_operator_counts_them() -> None:
    gpus = {"limits": {"nvidia.com/gpu": 2, "cpu": 8}}
    assert job(container={"resources": gpus}).processes == 2
    assert job(container={"resources": gpus}, processesPerReplica=4).processes == 4
    assert job(container={"resources": gpus}, processesPerReplica="auto").processes == 2
    assert job(container={"resources": {"limits": {"google.com/tpu": "4"}}}).processes == 4


def test_command_of_the_image_is_dtj_and_agents_do_not_write_the_pods_report() -> None:
    report = ["--termination-log", "/dev/null"]
    assert words(job(), {}) == ["dtj", "run", *report, "train.py"]
    by_path = job(container={"command": ["/usr/bin/dtj"], "args": ["train", "a:b", "lr=$(LR)"]})
    assert words(by_path, {"LR": "1"}) == ["/usr/bin/dtj", "train", *report, "a:b", "lr=1"]
    assert words(job(container={"command": ["torchrun", "a.py"], "args": []}), {}) == ["torchrun", "a.py"]


def test_replica_that_is_killed_or_evicted_is_replaced_if_an_agent_ran_it() -> None:
    torchrun = job(container={"command": ["torchrun", "a.py"]})
    codes = (-9, 75, 143, 1, 76, 78)
    assert [is_lost(job(), code) for code in codes] == [True, True, True, False, False, False]
    assert not is_lost(torchrun, -9)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"replicas": "two"}, "spec.replicas is 'two', expected a whole number of at least 1"),
        ({"replicas": 3, "elastic": {"minReplicas": 1, "maxReplicas": 2}}, "spec.replicas is 3, outside of"),
        ({"container": {"args": []}}, r"containers\[0\] has neither command nor args"),
        ({"container": {"args": "run"}}, "args is 'run', expected a list"),
        ({"container": {"env": [{"name": "DTJ_JOB", "value": "a"}]}}, "DTJ_JOB, which the operator sets"),
        ({"pod": {"containers": []}}, "containers is empty"),
        ({"hang": 5}, "spec.hang is 5, expected fields"),
        ({"successPolicy": {"replicas": ["a"]}}, r"successPolicy.replicas\[0\] is 'a', expected a whole"),
        ({"replicas": 2, "successPolicy": {"replicas": [0, 2]}}, "has 2, but the last replica is 1"),
    ],
)
def test_wrong_field_is_named(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        job(**spec)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: PyTorchJob", "has 0 objects of kind DistributedTrainingJob (found: PyTorchJob)"),
        ("", "(found: nothing)"),
        ("a: [", "is not YAML"),
        ("kind: DistributedTrainingJob\n---\nkind: DistributedTrainingJob", "has 2 objects of kind"),
    ],
)
def test_file_without_one_job_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(RecipeError) as refused:
        load(str(tmp_path / "job.yaml"))
    assert said in refused.value.what
    assert "\n" not in refused.value.what


JOB = {
    "kind": "DistributedTrainingJob",
    "spec": {"template": {"spec": {"containers": [{"args": ["größe"]}]}}},
}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(JOB, indent="\t").encode(),
        json.dumps({"kind": "List", "items": [JOB]}).encode(),
        yaml.safe_dump(JOB, allow_unicode=True).encode(),
        yaml.safe_dump(JOB, allow_unicode=True).encode("utf-16"),
    ],
    ids=["tabs", "list", "UTF-8", "UTF-16"],
)
def test_file_is_read_as_kubectl_reads_it(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "job").write_bytes(text)
    assert load(str(tmp_path / "job")).command[-1] == "größe"


def test_job_comes_from_standard_input_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(JOB).encode())))
    assert load("-").command[-1] == "größe"
    with pytest.raises(RecipeError, match="standard input has 0 objects of kind"):
        load("-")  # is read to its end
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(RecipeError, match="standard input is closed"):
        load("-")


def test_words_without_quotes_are_those_that_kubectl_reads(tmp_path: Path) -> None:
    container = "{name: a, args: [run, a.py, 1:30:00], env: [{name: AT, value: 2026-11-25T10:00:00Z}]}"
    text = f"kind: DistributedTrainingJob\nspec: {{template: {{spec: {{containers: [{container}]}}}}}}"
    (tmp_path / "job.yaml").write_text(text)
    found = load(str(tmp_path / "job.yaml"))
    assert found.command[-1] == "1:30:00"
    assert found.env == (("AT", "2026-11-25T10:00:00Z"),)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--local", "--local without a job"),
        ("-f nothing.yaml --local", "cannot read nothing.yaml"),
        ("-f job.yaml", "-f job.yaml without --local"),
        ("-f job.yaml --local train.py", "-f job.yaml and the script train.py"),
        ("-f job.yaml --local --nproc 2", "--nproc_per_node does not go with -f"),
        ("-f job.yaml --local --log json", "--log does not go with -f"),
        ("", "no script given"),
    ],
)
def test_wrong_use_is_one_sentence_and_a_fix(
    capsys: pytest.CaptureFixture[str], options: str, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", *options.split()])
    assert ended.value.code == 78
    assert capsys.readouterr().err.startswith(f"dtj: {said}")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_can_be_read(path: Path) -> None:
    for each in yaml.safe_load_all(path.read_text()):
        if each and each["kind"] == "DistributedTrainingJob":
            assert parse(each).command
