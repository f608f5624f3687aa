"""The configuration of the client: a proxy from the environment, looked up once."""

import json
from pathlib import Path

import pytest
from kubernetes.aio.config import kube_config

from dtj_operator.kube import config

SERVER = "https://api.example:6443"


@pytest.fixture(autouse=True)
def server(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", SERVER)


@pytest.fixture(autouse=True)
def kubeconfig(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))  # read at import


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        pytest.param({}, None, id="no proxy"),
        pytest.param({"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128", id="for https"),
        pytest.param({"HTTP_PROXY": "http://proxy:3128"}, None, id="only for http"),
        pytest.param(
            {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "api.example"}, None, id="not for this server"
        ),
    ],
)
async def test_proxy_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], proxy: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert (await config.load()).proxy == proxy


@pytest.mark.parametrize(
    ("server", "excluded", "proxy"),
    [
        pytest.param("https://10.96.0.1:443", ".svc, 10.0.0.0/8", None, id="in the range"),
        pytest.param("https://[fd00::1]:443", "fd00::/8", None, id="in a range of IPv6"),
        pytest.param("https://10.96.0.1:443", "10.96.0.0/28,192.168.0.0/16", None, id="in one of several"),
        pytest.param("https://11.0.0.1:443", "10.0.0.0/8", "http://proxy:3128", id="in no range"),
        pytest.param("https://api.example", "10.0.0.0/8", "http://proxy:3128", id="a name"),
        pytest.param("https://10.96.0.1:443", "a/b", "http://proxy:3128", id="not a range"),
    ],
    indirect=["server"],
)
@pytest.mark.usefixtures("server")
async def test_no_proxy_may_name_a_range_of_addresses(
    monkeypatch: pytest.MonkeyPatch, excluded: str, proxy: str | None
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", excluded)

    assert (await config.load()).proxy == proxy
