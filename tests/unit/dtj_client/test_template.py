"""How a job is merged with a template, and where each field comes from."""

import pytest

from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Json
from dtj_client.submission.manifest import CPU_IMAGE, GPU_IMAGE, Request, asked, job
from dtj_client.submission.requirements import Requirements
from dtj_client.submission.template import Template, merge, origins

H100 = """
spec:
  replicas: 4
  checkpoint: {volume: {hostPath: {path: /mnt}}}
  template:
    spec:
      nodeSelector: {gpu: h100}
      volumes:
      - {name: data, emptyDir: {}}
      containers:
      - name: trainer
        args: [train]
        env:
        - {name: NCCL_DEBUG, value: INFO}
        - {name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}
        resources: {limits: {nvidia.com/gpu: 8, memory: 1Ti}}
        volumeMounts:
        - {name: data, mountPath: /a}
        - {name: data, mountPath: /b}
"""


def template(text: str = H100) -> Template:
    return Template(name="h100", shared=True, description="", text=text)


def test_template_fills_in_what_was_not_asked_for() -> None:
    made = job(Request(name="a", command=["train.py"]), with_code=True, template=template().job)
    pod = made["spec"]["template"]["spec"]
    (trainer,) = pod["containers"]
    assert (made["spec"]["replicas"], pod["nodeSelector"]) == (4, {"gpu": "h100"})
    assert trainer["image"] == pod["initContainers"][0]["image"] == GPU_IMAGE
    assert trainer["command"] == ["dtj", "run", "train.py"]
    assert "args" not in trainer, "they belong to the command of the template"
    assert [each["mountPath"] for each in trainer["volumeMounts"]] == ["/a", "/b", "/app"]
    assert [each["name"] for each in pod["volumes"]] == ["data", "code", "app"]


def test_init_containers_have_the_user_and_the_resources_of_the_trainer_but_no_gpu() -> None:
    """A quota may demand resources of each container, and the user of the trainer has to read the files."""
    user = "\n        securityContext: {runAsUser: 1000}\n        resources: {requests: {cpu: 4},"
    part = template(H100.replace("\n        resources: {", user)).job
    request = Request(name="a", command=["a.py"], requirements=Requirements(path="r.txt", text=""))
    pod = job(request, with_code=True, template=part)["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["initContainers"]] == ["code", "packages"]
    for each in pod["initContainers"]:
        assert each["securityContext"] == {"runAsUser": 1000}
        assert each["resources"] == {"requests": {"cpu": 4}, "limits": {"memory": "1Ti"}}


@pytest.mark.parametrize(("user", "of_the_pod"), [(1000, {}), (0, {"runAsNonRoot": False})])
def test_user_replaces_that_of_the_templates_container(user: int, of_the_pod: Json) -> None:
    own = "securityContext: {runAsUser: 5, runAsNonRoot: true, privileged: false}"
    part = template(H100.replace("resources: {", f"{own}\n        resources: {{")).job
    pod = job(Request(name="a", command=["x"], user=user), with_code=True, template=part)["spec"]["template"]
    assert pod["spec"]["securityContext"] == {"runAsUser": user, **of_the_pod}
    for each in (*pod["spec"]["containers"], *pod["spec"]["initContainers"]):
        assert each["securityContext"] == {"privileged": False}


def test_number_of_gpus_replaces_requests_and_limits_of_the_template() -> None:
    part = template(H100.replace("resources: {", "resources: {requests: {nvidia.com/gpu: 8, cpu: 4},")).job
    made = job(Request(name="a", command=["x"], gpus=2), with_code=False, template=part)
    (trainer,) = made["spec"]["template"]["spec"]["containers"]
    assert trainer["resources"] == {"requests": {"cpu": 4}, "limits": {"nvidia.com/gpu": 2, "memory": "1Ti"}}
    (of_the_template,) = part["spec"]["template"]["spec"]["containers"]
    assert of_the_template["resources"]["requests"] == {"nvidia.com/gpu": 8, "cpu": 4}


MIG = H100.replace("nvidia.com/gpu", "nvidia.com/mig-3g.40gb")
AMD = H100.replace("nvidia.com/gpu", "amd.com/gpu").replace("args: [train]", "image: rocm:1")


@pytest.mark.parametrize(
    ("text", "gpus", "limits"),
    [
        (AMD, 4, {"amd.com/gpu": 4}),
        (AMD, "4", {"amd.com/gpu": 4}),
        (AMD, None, {"amd.com/gpu": 8}),
        (AMD, 0, {"amd.com/gpu": 0}),
        (AMD, "nvidia.com/gpu=2", {"nvidia.com/gpu": 2}),
        (MIG, 2, {"nvidia.com/mig-3g.40gb": 2}),
        (MIG, "nvidia.com/gpu=2", {"nvidia.com/gpu": 2}),
        (H100, "habana.ai/gaudi=8", {"habana.ai/gaudi": 8}),
        (H100.replace("nvidia.com/gpu: 8,", ""), 4, {"nvidia.com/gpu": 4}),
    ],
)
def test_gpus_are_of_the_kind_of_the_template_unless_the_user_names_another(
    text: str, gpus: int | str | None, limits: dict[str, int]
) -> None:
    request, part = Request(name="a", command=["x"], gpus=gpus, image="my:1"), template(text).job
    (trainer,) = job(request, with_code=False, template=part)["spec"]["template"]["spec"]["containers"]
    assert trainer["resources"]["limits"] == {"memory": "1Ti", **limits}
    if gpus is not None:
        (given,) = asked(request, with_code=False, template=part)["spec"]["template"]["spec"]["containers"]
        assert given["resources"]["limits"] == limits


def test_words_of_the_user_win() -> None:
    request = Request(
        name="a", command=["x"], replicas=2, gpus=1, image="my:1", env={"TOKEN": "t"}, claim="runs", queue="q"
    )
    made = job(request, with_code=False, template=template().job)
    (trainer,) = made["spec"]["template"]["spec"]["containers"]
    assert (made["spec"]["replicas"], trainer["image"]) == (2, "my:1")
    assert trainer["resources"]["limits"] == {"nvidia.com/gpu": 1, "memory": "1Ti"}
    assert {"name": "TOKEN", "value": "t"} in trainer["env"], "a variable has one source"
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in trainer["env"]
    assert made["spec"]["checkpoint"]["volume"] == {"persistentVolumeClaim": {"claimName": "runs"}}


def test_secrets_of_the_template_are_joined_and_also_for_pip() -> None:
    part = template(
        H100.replace("args: [train]", "envFrom: [{secretRef: {name: a}}, {secretRef: {name: b}}]")
    ).job
    packages = Requirements(path="r.txt", text="")
    request = Request(
        name="a",
        command=["x"],
        memory="64Gi",
        env_from=["secret/b", "TOKEN=secret/mine/token", "secret/c"],
        requirements=packages,
    )
    pod = job(request, with_code=True, template=part)["spec"]["template"]["spec"]
    (trainer,) = pod["containers"]
    assert [each["secretRef"]["name"] for each in trainer["envFrom"]] == ["a", "b", "c"]
    found = dict(origins({"envFrom": [1, 2]}, {"h100": {"envFrom": [1]}, "user": {"envFrom": [2]}}))
    assert found == {"envFrom": "h100 and user"}
    token = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "token"}}}
    assert token in trainer["env"]
    installer = pod["initContainers"][1]
    assert (installer["envFrom"], token in installer["env"]) == (trainer["envFrom"], True)
    assert installer["resources"]["limits"] == {"memory": "64Gi"}


def test_each_field_has_its_origin() -> None:
    request = Request(name="a", command=["x"], replicas=2, env={"A": "1"})
    given, part = asked(request, with_code=False), template().job
    found = dict(origins(job(request, with_code=False, template=part), {"h100": part, "user": given}))
    container = "spec.template.spec.containers[trainer]"
    assert {path: found[path] for path in found if path.startswith(container) or "replicas" in path} == {
        "spec.replicas": "user",
        f"{container}.env[NCCL_DEBUG].value": "h100",
        f"{container}.env[TOKEN].valueFrom.secretKeyRef.key": "h100",
        f"{container}.env[TOKEN].valueFrom.secretKeyRef.name": "h100",
        f"{container}.env[A].value": "user",
        f"{container}.resources.limits.nvidia.com/gpu": "h100",
        f"{container}.resources.limits.memory": "h100",
        f"{container}.volumeMounts[/a].name": "h100",
        f"{container}.volumeMounts[/b].name": "h100",
        f"{container}.command": "user",
        f"{container}.image": "default",
    }


def test_lists_without_names_are_replaced() -> None:
    assert merge({"a": [1, 2]}, {"a": [3]}) == {"a": [3]}


def test_defaults_without_a_template() -> None:
    made = job(Request(name="a", command=["x"]), with_code=False)
    (trainer,) = made["spec"]["template"]["spec"]["containers"]
    assert trainer == {"name": "trainer", "command": ["x"], "image": CPU_IMAGE}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spec: [", "is not YAML"),
        ("spec: {}\n---\nspec: {}", "is not an object with metadata and spec"),
        ("", "is not an object with metadata and spec"),
        ("kind: Pod", "is not an object with metadata and spec"),
        ("spec: 4", "is not a part of a job"),
        ("spec: {template: {spec: {containers: [{name: main}]}}}", "no container is named trainer"),
    ],
)
def test_template_that_cannot_be_used(text: str, said: str) -> None:
    with pytest.raises(ClientError, match=said):
        _ = template(text).job
