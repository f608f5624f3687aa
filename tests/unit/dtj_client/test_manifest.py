"""The objects of a submitted job."""

import contextlib
import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.local.manifest import expand
from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Json
from dtj_client.submission import manifest
from dtj_client.submission.archive import pack
from dtj_client.submission.manifest import InClaim, Request, config_map, job, owned_by
from dtj_operator.model.spec import parse


def parsed(made: Json) -> object:
    """The job as the operator reads it."""
    meta = {"namespace": "team-a", "uid": "u", **made["metadata"]}
    return parse({**made, "metadata": meta})


def test_python_file_runs_under_dtj_run_and_any_other_program_as_it_is() -> None:
    for command, expected in (
        (["train.py", "--lr", "3e-4"], ["dtj", "run", "train.py", "--lr", "3e-4"]),
        (["torchrun", "train.py"], ["torchrun", "train.py"]),
    ):
        (trainer,) = job(Request(name="a", command=command), with_code=True)["spec"]["template"]["spec"][
            "containers"
        ]
        assert trainer["command"] == expected


@pytest.mark.parametrize("word", ["$(HOME)", "$$", "a$$(b)$", "$HOME", "^loss$", "$(", "$$$("])
def test_words_and_variables_arrive_as_they_are(word: str) -> None:
    made = job(Request(name="a", command=["train.py", word], env={"A": word}), with_code=False)
    (trainer,) = made["spec"]["template"]["spec"]["containers"]
    in_pod = {"HOME": "/root", "b": "c"}
    assert [expand(each, in_pod) for each in trainer["command"]] == ["dtj", "run", "train.py", word]
    assert [expand(each["value"], in_pod) for each in trainer["env"]] == [word]


@pytest.mark.parametrize("in_claim", [False, True])
def test_code_is_unpacked_into_the_working_directory(tmp_path: Path, in_claim: bool) -> None:
    (tmp_path / "code/.dtj/code").mkdir(parents=True)
    (tmp_path / "app").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train.py").write_text("print(1)")
    packed = pack(tmp_path / "folder")
    path = f".dtj/code/{hashlib.sha256(packed.data).hexdigest()[:32]}.tar.gz" if in_claim else ""
    place = InClaim(claim="runs", path=path) if in_claim else None
    request = Request(name="digits", command=["train.py"], replicas=2, code_in=place)

    made = job(request, with_code=True)
    pod = made["spec"]["template"]["spec"]
    stored = config_map(request, packed)
    assert stored["immutable"]
    volume = pod["volumes"][0]
    if place:
        assert volume["persistentVolumeClaim"] == {"claimName": "runs"}
    else:
        assert volume["configMap"]["name"] == stored["metadata"]["name"]
    assert pod["containers"][0]["workingDir"] == pod["initContainers"][0]["volumeMounts"][1]["mountPath"]
    script = pod["initContainers"][0]["command"][2]
    (tmp_path / "code" / (path or manifest.ARCHIVE)).write_bytes(packed.data)
    here = script.replace("'/code/", f"'{tmp_path}/code/").replace("'/app'", f"'{tmp_path}/app'")
    exec(here, {})
    assert (tmp_path / "app" / "train.py").read_text() == "print(1)"
    with tarfile.open(fileobj=io.BytesIO(packed.data)) as tar:
        assert tar.getnames() == ["train.py"]
    if in_claim:  # another job may have replaced it
        (tmp_path / "folder" / "train.py").write_text("print(2)")
        (tmp_path / "code" / path).write_bytes(pack(tmp_path / "folder").data)
        with pytest.raises(SystemExit, match="78"):
            exec(here, {})
        assert (tmp_path / "app" / "train.py").read_text() == "print(1)"


@pytest.mark.parametrize(("length", "replicas", "fits"), [(61, 10, True), (61, 11, False), (62, None, False)])
def test_last_pod_needs_a_name_for_a_host(length: int, replicas: int | None, fits: bool) -> None:
    request = Request(name="a" * length, command=["a.py"], replicas=replicas)
    with contextlib.nullcontext() if fits else pytest.raises(ClientError, match="is too long by 1"):
        job(request, with_code=False)


def test_options_become_fields() -> None:
    made = job(
        Request(
            name="big",
            command=["a.py"],
            replicas=4,
            gpus=8,
            cpu="4",
            memory="16Gi",
            env={"A": "1"},
            env_from=["secret/s3-login", "configmap/settings", "HF_TOKEN=secret/hugging-face/token"],
            claim="runs",
            queue="team",
            image="my:1",
        ),
        with_code=False,
    )
    pod = made["spec"]["template"]["spec"]
    assert made["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team"}
    assert made["spec"]["checkpoint"]["volume"]["persistentVolumeClaim"] == {"claimName": "runs"}
    assert "initContainers" not in pod
    (trainer,) = pod["containers"]
    token = {"secretKeyRef": {"name": "hugging-face", "key": "token"}}
    variables = [{"name": "A", "value": "1"}, {"name": "HF_TOKEN", "valueFrom": token}]
    assert (trainer["image"], trainer["env"]) == ("my:1", variables)
    assert trainer["envFrom"] == [{"secretRef": {"name": "s3-login"}}, {"configMapRef": {"name": "settings"}}]
    amounts = {"cpu": "4", "memory": "16Gi"}
    assert trainer["resources"] == {"requests": amounts, "limits": {**amounts, "nvidia.com/gpu": 8}}
    read = parsed(made)
    assert (read.error, read.replicas, read.processes) == (None, 4, 8)  # type: ignore[attr-defined]
    assert yaml.safe_load(yaml.safe_dump(made)) == made


def test_gpus_choose_the_gpu_image() -> None:
    for gpus, image in ((0, manifest.CPU_IMAGE), (1, manifest.GPU_IMAGE)):
        pod = job(Request(name="a", command=["a.py"], gpus=gpus), with_code=False)["spec"]["template"]["spec"]
        assert pod["containers"][0]["image"] == image


@pytest.mark.parametrize("resource", ["amd.com/gpu", "gpu.intel.com/xe", "habana.ai/gaudi"])
def test_accelerator_of_another_maker_needs_an_image(resource: str) -> None:
    with pytest.raises(ClientError, match=f"there is no trainer image for {resource}\n  fix: name yours"):
        job(Request(name="a", command=["a.py"], gpus=f"{resource}=8"), with_code=False)
    made = job(Request(name="a", command=["a.py"], gpus=f"{resource}=8", image="my:1"), with_code=False)
    (trainer,) = made["spec"]["template"]["spec"]["containers"]
    assert trainer["resources"] == {"limits": {resource: 8}}
    assert parsed(made).processes == 8  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("command", "options", "value"),
    [
        (["torchrun", "train.py"], {}, "true"),
        (["uv", "run", "torchrun", "train.py"], {}, "true"),
        (["torchrun", "train.py"], {"env": {"ACCELERATE_USE_CPU": "no"}}, "no"),
        (["torchrun", "train.py"], {"gpus": 1}, None),
        (["torchrun", "train.py"], {"image": "my:1"}, "true"),
        (["torchrun", "train.py"], {"gpus": 0}, "true"),
        (["train.py"], {}, None),
    ],
)
def test_accelerate_under_torchrun_finds_out_that_there_are_only_cpus(
    command: list[str], options: dict[str, Any], value: str | None
) -> None:
    made = job(Request(name="a", command=command, **options), with_code=False)
    (trainer,) = made["spec"]["template"]["spec"]["containers"]
    found = {each["name"]: each["value"] for each in trainer.get("env", ())}
    assert found.get("ACCELERATE_USE_CPU") == value


def test_accelerators_are_counted_or_claimed() -> None:
    """A claim of dynamic resource allocation has no number; of 0 GPUs there is none."""
    claims = {"spec": {"containers": [{"name": "trainer", "resources": {"claims": [{"name": "gpu"}]}}]}}
    template = {"spec": {"template": claims}}
    launch = ["accelerate", "launch", "train.py"]
    for options, asked, on_cpus in (({"gpus": 0}, None, True), ({}, None, True), ({}, template, False)):
        request = Request(name="a", command=launch, replicas=2, image="my:1", **options)  # type: ignore[arg-type]
        made = job(request, with_code=False, template=asked)
        (trainer,) = made["spec"]["template"]["spec"]["containers"]
        assert ("--cpu" in trainer["command"]) is on_cpus


@pytest.mark.parametrize("resource", ["nvidia.com/mig-3g.40gb", "nvidia.com/gpu.shared"])
def test_part_of_a_gpu_needs_the_gpu_image(resource: str) -> None:
    limits = {"resources": {"limits": {resource: 1}}}
    template = {"spec": {"template": {"spec": {"containers": [{"name": "trainer", **limits}]}}}}
    for options, given in (({"gpus": f"{resource}=1"}, None), ({}, template), ({"gpus": 1}, template)):
        request = Request(name="a", command=["torchrun", "train.py"], **options)
        made = job(request, with_code=False, template=given)
        (trainer,) = made["spec"]["template"]["spec"]["containers"]
        assert (trainer["image"], trainer["resources"]) == (manifest.GPU_IMAGE, limits["resources"])
        assert "env" not in trainer


def test_what_gpus_names_is_an_accelerator() -> None:
    request = Request(name="a", command=["torchrun", "train.py"], gpus="example.com/device=1")
    with pytest.raises(ClientError, match="there is no trainer image for example"):
        job(request, with_code=False)
    made = job(replace(request, image="my:1"), with_code=False)
    assert "env" not in made["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["dtj", "run", "--nproc", "4", "train.py"], 4),
        (["dtj", "run", "--compile", "--nproc-per-node=4", "train.py"], 4),
        (["/opt/bin/dtj", "train", "--nproc_per_node", "4", "a:b"], 4),
        (["dtj", "train", "a:b", "steps=3", "--nproc", "4"], 4),
        (["dtj", "run", "--nproc", "gpu", "train.py"], 2),
        (["dtj", "run", "train.py", "--nproc", "4"], 2),
        (["torchrun", "--nproc-per-node", "4", "train.py"], 4),
        (["python", "-m", "torch.distributed.run", "--nproc_per_node=4", "train.py"], 4),
        (["torchrun", "--nproc-per-node", "gpu", "train.py"], 2),
        (["train.py", "--nproc", "4"], 2),
    ],
)
def test_job_has_as_many_ranks_as_its_launcher_starts(words: list[str], expected: int) -> None:
    template = {"spec": {"processesPerReplica": 2}}
    made = job(Request(name="a", command=words), with_code=False, template=template)
    assert parsed(made).processes == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "home"),
    [
        ({"user": 1000}, "/tmp"),
        ({"user": 1000, "env": {"HOME": "/home/me"}}, "/home/me"),
        ({"user": 0}, None),
        ({}, None),
    ],
)
def test_user_that_the_image_may_not_know_has_a_home(options: dict[str, Any], home: str | None) -> None:
    for of_template in (None, "/data"):
        container = {
            "name": "trainer",
            "env": [{"name": "HOME", "value": of_template}] if of_template else [],
        }
        template = {"spec": {"template": {"spec": {"containers": [container]}}}}
        made = job(Request(name="a", command=["a.py"], **options), with_code=False, template=template)
        (trainer,) = made["spec"]["template"]["spec"]["containers"]
        found = {each["name"]: each["value"] for each in trainer["env"]}
        expected = home if "env" in options else of_template or home
        assert found == ({"HOME": expected} if expected else {})


def test_number_of_gpus_leaves_the_network_card_of_the_template() -> None:
    limits = {"nvidia.com/gpu": 8, "nvidia.com/hostdev": 1}
    containers = [{"name": "trainer", "resources": {"limits": limits}}]
    template = {"spec": {"template": {"spec": {"containers": containers}}}}
    made = job(Request(name="a", command=["a.py"], gpus=2), with_code=False, template=template)
    (trainer,) = made["spec"]["template"]["spec"]["containers"]
    assert trainer["resources"]["limits"] == limits | {"nvidia.com/gpu": 2}


def test_code_goes_with_the_job() -> None:
    stored = {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "K",
        "metadata": {"name": "a", "uid": "u", "x": 1},
        "spec": {},
    }
    code = owned_by(stored, {"kind": "ConfigMap", "metadata": {"name": "a-code"}})
    assert code["metadata"] == {
        "name": "a-code",
        "ownerReferences": [{"apiVersion": "dtj.dev/v1alpha1", "kind": "K", "name": "a", "uid": "u"}],
    }


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"memory": "512mb"}, "memory: '512mb' is not an amount\n  fix: write such as 512Mi, 16Gi or 16G"),
        ({"memory": "16"}, "memory: 16 is only 16 bytes\n  fix: write the unit, such as 16Mi or 16Gi"),
        ({"memory": "500m"}, "memory: 500m is only 0.5 bytes\n  fix: write the unit, such as 500Mi or 500Gi"),
        ({"memory": "1e3"}, "memory: 1e3 is only 1000 bytes"),
        ({"cpu": "-1"}, "cpu: '-1' is not an amount\n  fix: write a number, or such as 500m"),
        ({"gpus": "amd"}, "gpus: 'amd' is not a number of GPUs\n  fix: write a number, or such as amd.com/"),
        ({"gpus": -1}, "gpus: -1 is not a number of GPUs"),
        (
            {"env_from": ["s3-login"]},
            "variables from 's3-login': this names no Secret or ConfigMap\n  fix: write",
        ),
        ({"env_from": ["secret/s3-login/key"]}, "this names no Secret"),
        ({"env_from": ["A=secret/s3-login"]}, "this names no Secret"),
    ],
)
def test_value_that_the_cluster_would_refuse(field: dict[str, Any], said: str) -> None:
    with pytest.raises(ClientError) as raised:
        Request(name="a", command=["train.py"], **field)
    assert said in str(raised.value)


@pytest.mark.parametrize("name", ["My Job", "1st", "a_b", "a-", ""])
def test_name_that_a_job_cannot_have(name: str) -> None:
    with pytest.raises(ClientError, match=r"(?s)cannot have the name.*such as [a-z][-a-z0-9]*-\w{4}$"):
        Request(name=name, command=["train.py"])
