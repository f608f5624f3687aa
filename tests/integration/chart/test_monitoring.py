"""The chart's alerts and dashboards, checked by Prometheus' own tool and by Grafana's schema."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY, generate_latest

import dtj_operator.job_metrics  # noqa: F401 - registers all metrics
from dtj import contract
from dtj.agent.report.status_server import metrics as agent_metrics
from tests.cluster import debian, go
from tests.docs.blocks import ROOT
from tests.integration import controlplane
from tests.integration.chart.conftest import CHART, Render, kinds
from tests.integration.controlplane import ControlPlane
from tests.support.grafana import problems
from tests.support.kubectl import Kubectl, KubectlError
from tests.support.scraping import (
    of_pod_monitor,
    of_service_monitor,
    targets_of_pods,
    targets_of_service,
)

Json = dict[str, Any]
Series = dict[str, str]
ALERTS = CHART / "files/alerts.yaml"
VALUES: Json = {
    "metrics": {
        **{name: {"enabled": True} for name in ("serviceMonitor", "podMonitor", "dashboards")},
        "prometheusRule": {"enabled": True, "docsUrl": "https://example.com/docs", "labels": {"a": "b"}},
    }
}

# Values of series over an hour, one a minute; `0+60x60` grows by 60 a minute, so by 1 a second.
ROWS: list[tuple[str, Series, Series]] = [
    (
        "DtjNoLeader",  # of one of two installations
        {'dtj_leader{lease="a/dtj",pod="1"}': "0x60", 'dtj_leader{lease="b/dtj",pod="2"}': "1x60"},
        {'dtj_leader{lease="a/dtj",pod="1"}': "0x60", 'dtj_leader{lease="a/dtj",pod="2"}': "1x60"},
    ),
    (
        "DtjNoLeader",  # all pods of one of two installations are gone; an upgrade replaces the pods
        {'dtj_leader{lease="a/dtj",pod="1"}': "1x30 stale", 'dtj_leader{lease="b/dtj",pod="2"}': "1x60"},
        {'dtj_leader{lease="a/dtj",pod="1"}': "1x30 stale", 'dtj_leader{lease="a/dtj",pod="2"}': "_x30 1x30"},
    ),
    ("DtjNoLeader", {'dtj_leader{lease="a/dtj"}': "1x30 stale"}, {'dtj_leader{lease="a/dtj"}': "1x60"}),
    ("DtjNoLeader", {"up": "1x60"}, {'dtj_leader{lease="a/dtj"}': "1x60"}),
    (
        "DtjTwoLeaders",
        {
            'dtj_leader{namespace="a",job="o",lease="a/dtj",pod="1"}': "1x60",
            'dtj_leader{namespace="a",job="o",lease="a/dtj",pod="2"}': "1x60",
        },
        {
            'dtj_leader{namespace="a",job="o",lease="a/dtj",pod="1"}': "1x60",
            'dtj_leader{namespace="a",job="o",lease="b/dtj",pod="1"}': "1x60",
            'dtj_leader{namespace="b",job="o",lease="a/dtj",pod="2"}': "0x60",
        },
    ),
    (
        "DtjQueueSlow",
        {
            'dtj_queue_wait_seconds_bucket{le="60"}': "0x60",
            'dtj_queue_wait_seconds_bucket{le="120"}': "0+60x60",
            'dtj_queue_wait_seconds_bucket{le="+Inf"}': "0+60x60",
        },
        {
            'dtj_queue_wait_seconds_bucket{le="10"}': "0+60x60",
            'dtj_queue_wait_seconds_bucket{le="+Inf"}': "0+60x60",
        },
    ),
    (
        "DtjMemoryHigh",
        {'process_resident_memory_bytes{pod="a"}': "95x60", 'dtj_memory_limit_bytes{pod="a"}': "100x60"},
        {'process_resident_memory_bytes{pod="a"}': "85x60", 'dtj_memory_limit_bytes{pod="a"}': "100x60"},
    ),
    (
        "DtjReconcileErrors",
        {'dtj_reconciles_total{result="error"}': "0+20x60", 'dtj_reconciles_total{result="done"}': "0+80x60"},
        {'dtj_reconciles_total{result="error"}': "0+5x60", 'dtj_reconciles_total{result="done"}': "0+95x60"},
    ),
    (
        "DtjApiErrors",
        {'dtj_api_requests_total{code="none"}': "0+20x60", 'dtj_api_requests_total{code="200"}': "0+80x60"},
        {'dtj_api_requests_total{code="409"}': "0+20x60", 'dtj_api_requests_total{code="200"}': "0+80x60"},
    ),
    (
        "DtjApiThrottled",
        {'dtj_api_requests_total{code="429"}': "0+120x60"},
        {'dtj_api_requests_total{code="429"}': "0+30x60"},
    ),
    (
        "DtjStatusWritesFail",
        {'dtj_status_write_failures_total{code="403"}': "0+60x60"},
        {'dtj_status_write_failures_total{code="409"}': "0+60x60"},
    ),
    (
        "DtjEventsDropped",
        {'dtj_events_dropped_total{reason="queue_full"}': "0+3x60"},
        {'dtj_events_dropped_total{reason="queue_full"}': "0+1x60"},
    ),
    (
        "DtjAgentsSilent",  # however seldom a silent agent is polled
        {'dtj_agents{result="nothing"}': "20x60", 'dtj_agents{result="answer"}': "10x60"},
        {'dtj_agents{result="nothing"}': "10x60", 'dtj_agents{result="answer"}': "20x60"},
    ),
    (
        "DtjAgentsSilent",
        {'dtj_agents{result="nothing"}': "2x60", 'dtj_agents{result="answer"}': "0x60"},
        {'dtj_agents{result="nothing"}': "1x60", 'dtj_agents{result="answer"}': "0x60"},
    ),
    (
        "DtjJobsBlocked",
        {'dtj_jobs_blocked{namespace="a",reason="Unschedulable"}': "1x60"},
        {'dtj_jobs_blocked{namespace="a",reason="Unschedulable"}': "1x29 0x30"},
    ),
    (
        "DtjRestartStorm",
        {'dtj_job_restarts_total{namespace="a",counted="true"}': "0+1x60"},
        {'dtj_job_restarts_total{namespace="a",counted="true"}': "0x50 5x10"},
    ),
    ("DtjNodesLost", {"dtj_nodes_lost_total": "0x30 5x30"}, {"dtj_nodes_lost_total": "0x30 1x30"}),
]


def promtool(*words: str | Path, given: bytes = b"") -> None:
    """Run promtool and check that it reports no problem."""
    program = debian.program("promtool", package="prometheus")
    done = subprocess.run([program, *words], input=given, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def alerts() -> dict[str, Json]:
    """Return the alerts by name."""
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_names_of_metrics_follow_the_conventions_of_prometheus():
    ours = re.split(r"^(?=# HELP )", generate_latest().decode(), flags=re.MULTILINE)
    text = "".join(family for family in ours if family.startswith("# HELP dtj_"))
    promtool("check", "metrics", given=text.encode())


def test_every_alert_fires_and_is_silent_on_the_control(tmp_path: Path):
    def case(alert: str, series: Series, firing: float) -> Json:
        state = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
        expected = {"expr": state, "eval_time": "1h", "exp_samples": [{"labels": "{}", "value": firing}]}
        given = [{"series": name, "values": values} for name, values in series.items()]
        return {"name": alert, "interval": "1m", "input_series": given, "promql_expr_test": [expected]}

    assert [*dict.fromkeys(alert for alert, _, _ in ROWS)] == list(alerts())
    tests = [case(alert, series, 1) for alert, series, _ in ROWS]
    tests += [case(alert, series, 0) for alert, _, series in ROWS]
    file = tmp_path / "tests.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests})
    )
    promtool("check", "rules", ALERTS)
    promtool("test", "rules", file)


def test_every_alert_has_an_entry_in_the_runbook():
    page = (ROOT / "docs/operations.md").read_text()
    headings = set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    assert headings == set(alerts())
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{name.lower()}"


def test_runbook_is_where_the_values_say(render: Render):
    (rule,) = kinds(render(VALUES), "PrometheusRule")
    assert rule["metadata"]["labels"]["a"] == "b"
    for each in rule["spec"]["groups"][0]["rules"]:
        assert each["annotations"]["runbook_url"].startswith("https://example.com/docs/operations.md#")


MONITORS = ("servicemonitors", "podmonitors", "prometheusrules")


@pytest.fixture(scope="module")
def monitored(plane: ControlPlane) -> ControlPlane:
    """Return the control plane, with the CRDs of the Prometheus operator."""
    source = go.module_folder("prometheus-operator", "github.com/prometheus-operator/prometheus-operator")
    folder = source / "example/prometheus-operator-crd"
    for kind in MONITORS:
        file = folder / f"monitoring.coreos.com_{kind}.yaml"
        controlplane.install(plane, file, f"{kind}.monitoring.coreos.com")
    return plane


@pytest.mark.parametrize("watched", [[], ["team-a", "team-b"]], ids=["all namespaces", "two namespaces"])
def test_prometheus_operator_knows_every_field(
    render: Render, monitored: ControlPlane, kubectl: Kubectl, watched: list[str]
):
    metrics = {
        name: {**given, "interval": "30s"} for name, given in VALUES["metrics"].items() if "Mon" in name
    }
    values = {"metrics": VALUES["metrics"] | metrics, "watchNamespaces": watched}
    found = [each for each in render(values) if each["apiVersion"] == "monitoring.coreos.com/v1"]
    assert {each["kind"] for each in found} == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    for each in found:
        each["metadata"]["namespace"] = kubectl.namespace
        kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", given=json.dumps(each))
        each["spec"]["unknown"] = {}
        with pytest.raises(KubectlError, match="unknown"):
            kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", given=json.dumps(each))


def found_by_prometheus(configuration: Json, folder: Path) -> set[tuple[tuple[str, str], ...]]:
    """Return the different targets that a real Prometheus keeps, without the labels that all have."""
    file = folder / "prometheus.yaml"
    file.write_text(json.dumps({"scrape_configs": [configuration]}))
    program = debian.program("promtool", package="prometheus")
    done = subprocess.run(
        [program, "check", "service-discovery", "--timeout=1s", file, configuration["job_name"]],
        capture_output=True,
        check=True,
    )
    common = (
        "__metrics_path__",
        "__scheme__",
        "__scrape_interval__",
        "__scrape_timeout__",
        "job",
        "instance",
    )
    kept = [each["labels"] for each in json.loads(done.stdout) if each["labels"]]
    return {tuple(sorted((key, each[key]) for key in each if key not in common)) for each in kept}


@pytest.mark.parametrize(
    ("address", "target"), [("10.0.0.7", "10.0.0.7:29400"), ("fd00::7", "[fd00::7]:29400")], ids=["4", "6"]
)
def test_pod_monitor_has_one_target_for_each_pod_of_a_job(
    render: Render, tmp_path: Path, address: str, target: str
):
    """With and without ports that containers declare; other pods, and pods that have ended, have none."""
    labels = {"dtj.dev/job-name": "digits", "dtj.dev/replica-index": "1"}
    sidecar = {"name": "sidecar", "ports": [{"containerPort": 99, "name": "web"}]}
    pod: Json = {
        "metadata": {"name": "digits-1", "namespace": "team", "labels": labels},
        "spec": {"containers": [{"name": "trainer"}, sidecar]},
        "status": {"podIP": address, "phase": "Running"},
    }
    other = pod | {"metadata": {"name": "other", "namespace": "team", "labels": {"app": "a"}}}
    ended = pod | {"status": {"podIP": "10.0.0.8", "phase": "Succeeded"}}
    (tmp_path / "pods.json").write_text(json.dumps([*targets_of_pods([pod, other, ended])]))
    (monitor,) = kinds(render(VALUES), "PodMonitor")

    found = found_by_prometheus(of_pod_monitor(monitor, tmp_path / "pods.json"), tmp_path)

    of_job = {"dtj_job": "digits", "dtj_replica": "1", "namespace": "team", "pod": "digits-1"}
    assert found == {tuple(sorted({"__address__": target, **of_job}.items()))}


def test_service_monitor_has_a_target_for_each_pod_of_the_operator(render: Render, tmp_path: Path):
    manifests = render(VALUES)
    (monitor,), (service,) = kinds(manifests, "ServiceMonitor"), kinds(manifests, "Service")
    addresses = {"10.0.0.7": "operator-a", "10.0.0.8": "operator-b"}
    piece: Json = {
        "metadata": {"namespace": service["metadata"]["namespace"]},
        "ports": [{"name": port["name"], "port": port["port"]} for port in service["spec"]["ports"]],
        "endpoints": [{"addresses": [at], "targetRef": {"name": name}} for at, name in addresses.items()],
    }
    other = service | {"metadata": {"labels": {"app.kubernetes.io/name": "other"}}}
    targets = [*targets_of_service(service, [piece]), *targets_of_service(other, [piece])]
    (tmp_path / "endpoints.json").write_text(json.dumps(targets))

    found = found_by_prometheus(of_service_monitor(monitor, tmp_path / "endpoints.json"), tmp_path)

    assert {dict(each)["pod"] for each in found} == {*addresses.values()}
    assert {dict(each)["__address__"] for each in found} == {f"{at}:8080" for at in addresses}


@pytest.fixture
def dashboards(render: Render) -> list[Json]:
    """Return both dashboards as Grafana reads them."""
    found = [
        json.loads(text)
        for each in kinds(render(VALUES), "ConfigMap")
        for name, text in each["data"].items()
        if name.endswith(".json")
    ]
    assert [dashboard["title"] for dashboard in found] == ["dtj jobs", "dtj operator"]
    return found


@pytest.fixture
def expressions(dashboards: list[Json]) -> list[str]:
    """Return the expressions of all panels, with Grafana's variables replaced."""
    found = []
    for dashboard in dashboards:
        panels = dashboard["panels"]
        assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
        found += [target["expr"] for panel in panels for target in panel["targets"]]
    return [each.replace("$__rate_interval", "5m").replace("$namespace", ".*") for each in found]


def test_dashboards_follow_the_schema_of_grafana(dashboards: list[Json]):
    assert {dashboard["title"]: problems(dashboard) for dashboard in dashboards} == {
        "dtj jobs": [],
        "dtj operator": [],
    }


def test_expressions_of_the_dashboards_are_valid(expressions: list[str], tmp_path: Path):
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", file)


def test_dashboards_and_alerts_name_only_metrics_that_exist(expressions: list[str]):
    document: Json = dict.fromkeys(contract.STATUS_FIELDS, 1)
    document |= {"checkpoint": {"step": 1}, "ranks": [], "slowest": {"rank": 0, "replica": 0, "ratio": 2.0}}
    known = {word.split("{")[0].split(" ")[0] for word in agent_metrics(document).splitlines()}
    for collector in REGISTRY._collector_to_names:
        for family in collector.collect():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
            known |= {family.name + suffix for suffix in suffixes.get(family.type, [""])}
    for expression in (*expressions, *(rule["expr"] for rule in alerts().values())):
        assert set(re.findall(r"\b(?:dtj|process|python)_\w+", expression)) <= known, expression
