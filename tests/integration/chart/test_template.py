"""The rendered chart: valid for Kubernetes, equal to the snapshot, with no more rights than needed."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from tests.integration.chart.conftest import CHART, Helm, Render, kinds
from tests.integration.controlplane import ControlPlane

Json = dict[str, Any]
pytestmark = pytest.mark.xdist_group("chart")  # one process renders each case once
CRD = Path(__file__).parents[3] / "crds/dtj.dev_distributedtrainingjobs.yaml"

KUBERNETES = tuple(f"1.{minor}" for minor in range(31, 38))
CASES: dict[str, Json] = {
    "defaults": {},
    "one replica needs no disruption budget": {"replicas": 1},
    "one namespace gets a Role instead of a ClusterRole": {"watchNamespaces": ["team-a"]},
    "one namespace and no right beyond it": {"watchNamespaces": ["team-a"], "rbac": {"readNodes": False}},
    "a digest wins over the tag": {"image": {"tag": "x", "digest": f"sha256:{'a' * 64}"}},
    "roles and account of another owner": {
        "rbac": {"create": False, "readNodes": False, "aggregateToDefaultRoles": False},
        "serviceAccount": {"create": False, "name": "theirs"},
    },
    "everything set": {
        "image": {"repository": "registry.example/dtj", "tag": "1.2.3", "pullPolicy": "Always"},
        "imagePullSecrets": ["pull", {"name": "other"}],
        "nameOverride": "training",
        "fullnameOverride": "trainer",
        "commonLabels": {"cost-center": "a"},
        "reconcile": {"workers": 4, "resyncSeconds": 60},
        "networkPolicy": {
            "enabled": True,
            "metricsFrom": [
                {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
            ],
            "egress": [{}],
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
            }
        ],
        "strategy": {"type": "Recreate"},
        "extraArgs": ["--no-leader-election"],
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/certs"}],
        "extraObjects": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-ca"}}
        ],
        "replicas": 3,
        "api": {"requestsPerSecond": 12.5},
        "logging": {"level": "debug", "format": "text"},
        "serviceAccount": {"annotations": {"a": "b"}},
        "metrics": {"port": 9000, "service": {"annotations": {"prometheus.io/scrape": "true"}}},
        "network": {"allowFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
        "health": {"port": 9001},
        "resources": {"limits": {"cpu": "1"}},
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podLabels": {"team": "a"},
        "podAnnotations": {"a": "b"},
    },
    "without a fence, with a policy for authors": {
        "fence": {"enabled": False},
        "jobPolicy": {"authorMayCreatePods": True, "forbid": ["hostPath", "privileged"]},
    },
    "as little as possible": {
        "crds": {"install": False},
        "podDisruptionBudget": {"enabled": False},
        "metrics": {"service": {"enabled": False}},
    },
}
case = pytest.mark.parametrize("values", [pytest.param(values, id=name) for name, values in CASES.items()])


def test_helm_lint_reports_nothing(helm: Helm):
    printed = helm("lint", "--strict", str(CHART))
    assert "[WARNING]" not in printed
    assert "[ERROR]" not in printed


@pytest.fixture(scope="module")
def validate() -> Callable[[Json, str], None]:
    """Return what checks a manifest for a version of Kubernetes; most cases share most manifests."""

    @functools.cache
    def check(manifest: str, version: str) -> None:
        kubernetes_validate.validate(json.loads(manifest), version, strict=True)

    return lambda manifest, version: check(json.dumps(manifest), version)


@case
def test_manifests_are_valid(render: Render, validate: Callable[[Json, str], None], values: Json):
    manifests = render(values)
    assert kinds(manifests, "Deployment")
    for manifest, version in itertools.product(manifests, (KUBERNETES[0], KUBERNETES[-1])):
        validate(manifest, version)


def test_manifests_and_crd_are_valid_in_every_version(render: Render, validate: Callable[[Json, str], None]):
    for manifest, version in itertools.product(render(CASES["everything set"]), KUBERNETES):
        validate(manifest, version)


def named(manifests: list[Json]) -> dict[str, Json]:
    """Return the manifests but for the CRD, by kind and name."""
    return {
        f"{each['kind']}/{each['metadata']['name']}": each
        for each in manifests
        if each["kind"] != "CustomResourceDefinition"
    }


@case
def test_manifests_are_as_they_were(render: Render, values: Json, snapshot: SnapshotAssertion):
    """The snapshot has every manifest of the defaults, and of other values those that are different."""
    rendered, defaults = named(render(values)), named(render({})) if values else {}
    different = {name: each for name, each in rendered.items() if each != defaults.get(name)}
    different |= {name: {"absent": name} for name in defaults.keys() - rendered.keys()}
    assert yaml.safe_dump_all(list(dict(sorted(different.items())).values()), sort_keys=False) == snapshot


def test_crd_is_shipped_byte_for_byte(helm: Helm):
    assert CRD.read_text() in helm.template({"crds": {"keep": False}})


def test_crd_is_kept_after_an_uninstallation(render: Render):
    (crd,) = kinds(render({}), "CustomResourceDefinition")
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert crd == yaml.safe_load(CRD.read_text())


def test_common_labels_are_on_every_object_of_the_chart(render: Render):
    made = [each for each in render(CASES["everything set"]) if each["metadata"]["name"] != "dtj-ca"]
    assert "CustomResourceDefinition" in [each["kind"] for each in made]
    assert [each for each in made if each["metadata"]["labels"].get("cost-center") != "a"] == []


@pytest.mark.parametrize("install", [True, False])
def test_notes_say_what_to_do_next(helm: Helm, install: bool):
    # helm prints notes only for an installation; a dry run needs no cluster.
    values = {"crds": {"install": install, "keep": False}}
    notes = helm("install", "dtj", str(CHART), "--dry-run=client", given=values).partition("NOTES:")[2]
    assert "kubectl apply -f examples/digits-ddp.yaml" in notes
    assert ("delete the CRD" in notes) is install, "a CRD of another release is never deleted"


def test_names_of_digits_are_text(helm: Helm, validate: Callable[[Json, str], None]):
    values = {**CASES["everything set"], "watchNamespaces": ["2026"], "priorityClassName": "1000"}
    printed = helm("template", "2024", str(CHART), "--namespace=2025", "--kube-version=1.35.0", given=values)
    for manifest in filter(None, yaml.safe_load_all(printed)):
        validate(manifest, KUBERNETES[-1])


@case
def test_operator_has_no_unneeded_rights(render: Render, values: Json):
    operators = [
        rule
        for role in kinds(render(values), "ClusterRole") + kinds(render(values), "Role")
        for rule in role["rules"]
        if not role["metadata"]["name"].endswith(("-edit", "-view"))
    ]
    resources = {resource for rule in operators for resource in rule["resources"]}
    verbs = {verb for rule in operators for verb in rule["verbs"]}
    assert not {"*"} & (resources | verbs | {group for rule in operators for group in rule["apiGroups"]})
    assert not {"secrets", "pods/exec", "roles", "clusterroles", "configmaps"} & resources
    assert not {"escalate", "bind", "impersonate", "deletecollection"} & verbs


def test_releases_of_one_name_share_no_cluster_scoped_object(render: Render):
    values: Json = {"jobPolicy": {"authorMayCreatePods": True}, "crds": {"install": False}}
    shared = [
        f"{each['kind']}/{each['metadata']['name']}"
        for each in render(values)
        if "namespace" not in each["metadata"] and "dtj-system" not in each["metadata"]["name"]
    ]
    assert shared == []


@case
def test_no_user_is_set(render: Render, values: Json):
    """OpenShift chooses the user of a namespace's pods, and refuses any other."""
    assert "runAsUser" not in str(render(values))
    assert "runAsGroup" not in str(render(values))


def test_value_may_be_left_empty(render: Render):
    """`podLabels:` in a file of values is null, and so is what `--set podLabels=null` removes."""
    needed = json.loads((CHART / "values.schema.json").read_text())["required"]
    empty = {name: None for name in yaml.safe_load((CHART / "values.yaml").read_text()) if name not in needed}

    assert "podLabels" in empty
    assert [each["kind"] for each in render(empty)] == [each["kind"] for each in render({})]


def test_security_contexts_can_be_removed(render: Render):
    nothing = {"runAsNonRoot": None, "seccompProfile": None}
    (deployment,) = kinds(render({"podSecurityContext": nothing}), "Deployment")
    assert "securityContext" not in deployment["spec"]["template"]["spec"]


@case
def test_pods_pass_the_restricted_standard(render: Render, values: Json, plane: ControlPlane, namespace: str):
    plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    kubectl = replace(plane.kubectl, namespace=namespace)
    (deployment,) = kinds(render(values), "Deployment")
    spec = {**deployment["spec"]["template"]["spec"], "priorityClassName": ""}
    kubectl("create", "serviceaccount", spec["serviceAccountName"])
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": spec}
    kubectl.apply(pod)
    container = spec["containers"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["resources"]["requests"]["memory"]


# What OpenShift's restricted-v2 admits in a pod; users and groups are chosen by the platform.
ALLOWED_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected"),
    "secret",
}
CHOSEN = {"runAsUser", "fsGroup", "supplementalGroups", "seLinuxOptions"}
EMPTY: Json = {
    "podSecurityContext": {"runAsNonRoot": None, "seccompProfile": None},
    "securityContext": {
        "allowPrivilegeEscalation": None,
        "readOnlyRootFilesystem": None,
        "capabilities": None,
    },
}


@pytest.mark.parametrize("values", [*CASES.values(), EMPTY], ids=[*CASES, "empty contexts"])
def test_pods_are_what_restricted_v2_of_openshift_admits(render: Render, values: Json):
    (deployment,) = kinds(render(values), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert {kind for volume in pod.get("volumes", ()) for kind in volume.keys() - {"name"}} <= ALLOWED_VOLUMES
    for each in (pod, *pod["containers"]):
        context = each.get("securityContext", {})
        assert not CHOSEN & context.keys()
        assert not context.get("privileged")
        assert not context.get("allowPrivilegeEscalation")
        assert set(context.get("capabilities", {}).get("add", ())) <= {"NET_BIND_SERVICE"}
        assert context.get("seccompProfile", {"type": "RuntimeDefault"}) == {"type": "RuntimeDefault"}
        assert not any("hostPort" in port for port in each.get("ports", ()))


def test_each_watched_namespace_has_its_own_roles_and_no_right_beyond(render: Render):
    manifests = render({"watchNamespaces": ["team-a", "team-b"], "rbac": {"readNodes": False}})
    (deployment,) = kinds(manifests, "Deployment")
    bindings = {
        (each["metadata"]["namespace"], each["roleRef"]["name"]) for each in kinds(manifests, "RoleBinding")
    }
    roles = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in kinds(manifests, "Role")}
    names = ("dtj-operator-dtj-system", "dtj-operator-dtj-system-lease")
    assert bindings == roles == {(where, name) for where in ("team-a", "team-b") for name in names}
    assert kinds(manifests, "ClusterRoleBinding") == []
    assert "--namespace=team-a,team-b" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]


def test_policy_about_authors_is_that_of_the_watched_namespaces(render: Render):
    """Another release may serve the other namespaces, without such a policy."""
    values: Json = {"watchNamespaces": ["team-a", "team-b"], "jobPolicy": {"forbid": ["hostPath"]}}
    (binding,) = (
        each["spec"]
        for each in kinds(render(values), "ValidatingAdmissionPolicyBinding")
        if each["metadata"]["name"].endswith("-jobs")
    )
    chosen = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}
    assert binding["matchResources"] == {"namespaceSelector": {"matchExpressions": [chosen]}}


@pytest.mark.parametrize("watched", [[], ["team-a", "team-b"]], ids=["all", "two"])
def test_rights_for_kueue_are_in_roles_of_their_own_and_only_if_asked(render: Render, watched: list[str]):
    without = render({"watchNamespaces": watched})
    asked = render({"watchNamespaces": watched, "kueue": {"enabled": True}})
    more = [each for each in asked if each not in without]
    assert [each for each in asked if each in without] == without
    assert {each["kind"].removesuffix("Binding") for each in more} <= {"Role", "ClusterRole"}
    of_jobs = {("Role", where) for where in watched} or {("ClusterRole", "")}
    rights = {
        (each["kind"], each["metadata"].get("namespace", ""), group, kind): set(rule["verbs"])
        for each in more
        for rule in each.get("rules", ())
        for group in rule["apiGroups"]
        for kind in rule["resources"]
    }
    classes = ("resourceflavors", "workloadpriorityclasses")
    assert rights == {
        ("ClusterRole", "", "scheduling.k8s.io", "priorityclasses"): {"get"},
        **{("ClusterRole", "", "kueue.x-k8s.io", kind): {"get"} for kind in classes},
        **{(*role, "kueue.x-k8s.io", "workloads/status"): {"patch"} for role in of_jobs},
        **{
            (*role, "kueue.x-k8s.io", "workloads"): {"get", "list", "watch", "create", "patch", "delete"}
            for role in of_jobs
        },
    }
    assert '"kueue' not in json.dumps([each for each in without if "rules" in each])


@pytest.mark.parametrize("watched", [[], ["team-a"], ["team-a", "team-b"]], ids=["all", "one", "several"])
def test_releases_of_one_name_in_two_namespaces_share_no_object(helm: Helm, watched: list[str]):
    """Helm refuses an object that another release has."""

    def objects(namespace: str) -> set[tuple[str, str, str]]:
        values = {"watchNamespaces": watched, "crds": {"install": False}}
        manifests = [each for each in yaml.safe_load_all(helm.template(values, namespace)) if each]
        assert len(manifests) > 8
        return {(m["kind"], m["metadata"].get("namespace", ""), m["metadata"]["name"]) for m in manifests}

    assert objects("here") & objects("there") == set()


@pytest.mark.parametrize(
    "values",
    [{}, {"fullnameOverride": "a" * 55}, {"nameOverride": "b" * 20}],
    ids=["release", "whole name", "end of the name"],
)
def test_longest_names_fit_into_the_name_of_a_service(helm: Helm, values: Json):
    longest = "a" * 53  # the most that Helm takes
    printed = helm("template", longest, str(CHART), "--kube-version=1.35.0", given=values)
    (service,) = kinds([each for each in yaml.safe_load_all(printed) if each], "Service")
    assert len(service["metadata"]["name"]) == 63


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("dtj", {}, "dtj-operator"),
        ("dtj-operator", {}, "dtj-operator"),
        ("dtj", {"nameOverride": "training"}, "dtj-training"),
        ("training", {"nameOverride": "training"}, "training-training"),
        ("dtj", {"nameOverride": "training", "fullnameOverride": "trainer"}, "trainer"),
    ],
)
def test_name_is_that_of_the_release_and_an_end(helm: Helm, release: str, values: Json, name: str):
    printed = helm("template", release, str(CHART), "--kube-version=1.35.0", given=values)
    (deployment,) = kinds([each for each in yaml.safe_load_all(printed) if each], "Deployment")
    assert deployment["metadata"]["name"] == name


REFUSED = [
    ("a misspelt key", {"replica": 2}, "additional properties 'replica' not allowed"),
    ("a misspelt nested key", {"image": {"tags": "x"}}, "additional properties 'tags' not allowed"),
    ("no replica", {"replicas": 0}, "at '/replicas': minimum: got 0, want 1"),
    ("replicas as text", {"replicas": "2"}, "got string, want integer"),
    (
        "an invalid digest",
        {"image": {"digest": "latest"}},
        "'/image/digest': 'latest' does not match pattern",
    ),
    ("a pull policy that does not exist", {"image": {"pullPolicy": "Sometimes"}}, "must be one of 'Always'"),
    ("no requests at all", {"api": {"requestsPerSecond": 0}}, "minimum: got 0, want 1"),
    ("a log level that does not exist", {"logging": {"level": "verbose"}}, "must be one of 'debug'"),
    ("a log format that does not exist", {"logging": {"format": "xml"}}, "must be one of 'json'"),
    (
        "an invalid namespace",
        {"watchNamespaces": ["Team A"]},
        "'/watchNamespaces/0': 'Team A' does not match",
    ),
    ("a namespace as text", {"watchNamespaces": "a"}, "got string, want array"),
    ("a privileged port", {"metrics": {"port": 80}}, "minimum: got 80, want 1,024"),
    ("labels that are not text", {"podLabels": {"a": 1}}, "got number, want string"),
    (
        "a unit that Kubernetes does not know",
        {"resources": {"limits": {"memory": "512MB"}}},
        "at '/resources/limits/memory': '512MB' does not match pattern",
    ),
    (
        "a misspelt peer",
        {"networkPolicy": {"metricsFrom": [{"namespaceSelectors": {}}]}},
        "at '/networkPolicy/metricsFrom/0': additional properties 'namespaceSelectors' not allowed",
    ),
    (  # the API server would drop it, and admit all pods
        "a misspelt selector of a peer",
        {"network": {"allowFrom": [{"podSelector": {"matchLabel": {"app": "prometheus"}}}]}},
        "at '/network/allowFrom/0/podSelector': additional properties 'matchLabel' not allowed",
    ),
    (
        "a peer whose block has no length",
        {"network": {"allowFrom": [{"ipBlock": {"cidr": "10.0.0.7"}}]}},
        "at '/network/allowFrom/0/ipBlock/cidr': '10.0.0.7' does not match pattern",
    ),
    (
        "a misspelt key of a label",
        {"network": {"allowFrom": [{"podSelector": {"matchLabels": {"kubernetes.io/metadata/name": "a"}}}]}},
        "invalid propertyName 'kubernetes.io/metadata/name'",
    ),
    (
        "a peer that is a block of some pods",
        {"network": {"allowFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}},
        "at '/network/allowFrom/0': maxProperties: got 2, want 1",
    ),
    (
        "a peer with one of no values",
        {"network": {"allowFrom": [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]}},
        "at '/network/allowFrom/0/podSelector/matchExpressions/0': missing property 'values'",
    ),
    ("a job policy that does not exist", {"jobPolicy": {"forbid": ["root"]}}, "must be one of 'hostPath'"),
    ("a pull secret without a name", {"imagePullSecrets": [{}]}, "missing property 'name'"),
    ("a group of values that is null", {"fence": None}, "at '': missing property 'fence'"),
    ("a port that is null", {"metrics": {"port": None}}, "at '/metrics': missing property 'port'"),
    ("no repository", {"image": {"repository": None}}, "at '/image': missing property 'repository'"),
    (
        "a repository with a tag",
        {"image": {"repository": "registry.example/dtj/operator:1.0"}},
        "at '/image/repository': 'registry.example/dtj/operator:1.0' does not match pattern",
    ),
    (
        "a repository with a digest",
        {"image": {"repository": f"dtj/operator@sha256:{'a' * 64}"}},
        "at '/image/repository': 'dtj/operator@sha256",
    ),
    (
        "a repository as a URL",
        {"image": {"repository": "https://registry.example/dtj/operator"}},
        "at '/image/repository': 'https://registry.example/dtj/operator' does not match pattern",
    ),
    (
        "one port for metrics and health",
        {"metrics": {"port": 8081}},
        "metrics.port and health.port are both 8081: set one of them to another port",
    ),
    (
        "a common label that the selector has",
        {"commonLabels": {"app.kubernetes.io/name": "mine"}},
        "commonLabels: the chart itself sets the label app.kubernetes.io/name: remove it",
    ),
    (
        "a pod label that the selector has",
        {"podLabels": {"app.kubernetes.io/instance": "mine"}},
        "podLabels: the chart itself sets the label app.kubernetes.io/instance: remove it",
    ),
    (
        "a pod label that is a common label",
        {"commonLabels": {"team": "a"}, "podLabels": {"team": "b"}},
        "podLabels.team is set in commonLabels too: remove one of them",
    ),
    ("an invalid label", {"commonLabels": {"team": "a b"}}, "at '/commonLabels/team': 'a b' does not match"),
    ("an extra object that is empty", {"extraObjects": [{}]}, "at '/extraObjects/0': missing properties"),
    ("a name too long for a Service", {"fullnameOverride": "a" * 56}, "at '/fullnameOverride': 'aaa"),
]


@pytest.mark.parametrize(("values", "words"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
def test_values_that_are_rejected(helm: Helm, values: Json, words: str):
    assert words in helm("template", "dtj", str(CHART), given=values, fails=True)


@pytest.mark.parametrize(
    "name",
    ["operator", "localhost:5000/operator", "[fd00::1]:5000/dtj/operator", "r.example/a_b/c.d/e--f"],
)
def test_repository_of_any_registry_is_accepted(helm: Helm, name: str):
    assert f"image: {name}:" in helm.template({"image": {"repository": name}}).replace('"', "")


def test_chart_can_be_a_dependency_that_a_condition_switches_on(helm: Helm, render: Render, tmp_path: Path):
    needed = {"name": "dtj-operator", "version": ">=0", "repository": f"file://{CHART}"}
    parent: Json = {"apiVersion": "v2", "name": "platform", "version": "0.1.0"}
    parent["dependencies"] = [needed | {"condition": "dtj-operator.enabled"}]
    (tmp_path / "Chart.yaml").write_text(json.dumps(parent))
    helm("dependency", "build", str(tmp_path))

    def kinds_of(**values: Any) -> list[str]:
        given = {"global": {"any": "value"}, "dtj-operator": values}
        made = helm("template", "dtj", str(tmp_path), "--kube-version=1.35.0", given=given)
        return [each["kind"] for each in yaml.safe_load_all(made) if each]

    assert kinds_of(enabled=True, replicas=2) == [each["kind"] for each in render({})]
    assert kinds_of(enabled=False) == []


def test_cluster_without_admission_policies_is_refused(helm: Helm):
    """The fence needs them; Kubernetes serves them from 1.30 on."""
    said = helm("template", "dtj", str(CHART), "--kube-version=1.29.9", fails=True)
    assert "chart requires kubeVersion: >=1.30.0-0" in said
