"""The programs that clusters and tests need, built on first use.

Tests call `ensure("etcd", "kube-apiserver")` and get paths.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.cluster import config, go
from tests.cluster.errors import ClusterError

# A minor version in this variable: `ensure` then returns the kube-apiserver of that version.
KUBERNETES = "DTJ_TEST_KUBERNETES"
# KUBEBUILDER_ASSETS holds these by convention: a user who has them for other projects need not build them.
ASSETS = ("etcd", "kube-apiserver", "kubectl")


@dataclass(frozen=True)
class Program:
    """One program: its folder below go/, its package there, seconds to build it alone with nothing cached."""

    module: str
    package: str
    seconds: int


PROGRAMS = {
    "coredns": Program("coredns", ".", 60),
    # Pushes images from files; also a registry for tests.
    "crane": Program("crane", "github.com/google/go-containerregistry/cmd/crane", 60),
    "etcd": Program("etcd", "go.etcd.io/etcd/server/v3", 90),
    "helm": Program("helm", "helm.sh/helm/v4/cmd/helm", 300),
    "kind": Program("kind", "sigs.k8s.io/kind", 15),
    "kube-apiserver": Program("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", 240),
    "kube-controller-manager": Program("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", 50),
    "kube-proxy": Program("kubernetes", "k8s.io/kubernetes/cmd/kube-proxy", 30),
    "kube-scheduler": Program("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", 30),
    "kubeadm": Program("kubernetes", "k8s.io/kubernetes/cmd/kubeadm", 35),
    # For `make integration K8S=1.30`: the oldest release that the chart accepts, and one in between.
    "kube-apiserver-1.30": Program("kubernetes-1.30", "k8s.io/kubernetes/cmd/kube-apiserver", 240),
    "kube-apiserver-1.34": Program("kubernetes-1.34", "k8s.io/kubernetes/cmd/kube-apiserver", 240),
    # The first release in which gangs are pods of a PodGroup.
    "kube-apiserver-1.36": Program("kubernetes-1.36", "k8s.io/kubernetes/cmd/kube-apiserver", 170),
    "kube-controller-manager-1.36": Program(
        "kubernetes-1.36", "k8s.io/kubernetes/cmd/kube-controller-manager", 50
    ),
    "kube-scheduler-1.36": Program("kubernetes-1.36", "k8s.io/kubernetes/cmd/kube-scheduler", 30),
    # The first one that serves PodGroups as v1beta1.
    "kube-apiserver-1.37": Program("kubernetes-1.37", "k8s.io/kubernetes/cmd/kube-apiserver", 170),
    "kube-controller-manager-1.37": Program(
        "kubernetes-1.37", "k8s.io/kubernetes/cmd/kube-controller-manager", 50
    ),
    "kube-scheduler-1.37": Program("kubernetes-1.37", "k8s.io/kubernetes/cmd/kube-scheduler", 30),
    "kubectl": Program("kubernetes", "k8s.io/kubernetes/cmd/kubectl", 35),
    "kubelet": Program("kubernetes", "k8s.io/kubernetes/cmd/kubelet", 60),
    "kwok": Program("kwok", "sigs.k8s.io/kwok/cmd/kwok", 170),
    "network-policies": Program("network-policies", ".", 100),
    "pause": Program("pause", ".", 10),
    "training-operator": Program(
        "training-operator", "github.com/kubeflow/training-operator/cmd/training-operator.v1", 90
    ),
}


def ensure(*names: str) -> dict[str, Path]:
    """Paths of programs, built if the cache does not have them. Safe to call from several processes.

    If DTJ_TEST_KUBERNETES is set, kube-apiserver is the one of that version; else if KUBEBUILDER_ASSETS is
    set, etcd, kube-apiserver and kubectl come from there.
    Raises ClusterError for an unknown name or version, a program missing there, or a build that fails.
    """
    if version := os.environ.get(KUBERNETES):
        built = {name: of_version(name, version) for name in names}
        paths = build(*built.values())
        return {name: paths[program] for name, program in built.items()}
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        return build(*names)
    given = {name: Path(assets, name) for name in names if name in ASSETS}
    for name, path in given.items():
        if not os.access(path, os.X_OK):
            raise ClusterError(
                f"no program {name} in KUBEBUILDER_ASSETS={assets}",
                fix="unset KUBEBUILDER_ASSETS; the tests then build their own",
            )
    return given | build(*(name for name in names if name not in ASSETS))


def of_version(name: str, version: str) -> str:
    """The program to use for a name; only kube-apiserver has several versions.

    version  like "1.36"
    Raises ClusterError for a version that has no lock file in go/.
    """
    usual = ".".join(config.kubernetes_version().removeprefix("v").split(".")[:2])
    if name != "kube-apiserver" or version == usual:
        return name
    prefix = f"{name}-"
    if f"{prefix}{version}" not in PROGRAMS:
        known = sorted([usual, *(each.removeprefix(prefix) for each in PROGRAMS if each.startswith(prefix))])
        raise ClusterError(f"no API server of Kubernetes {version}", fix=f"use one of {', '.join(known)}")
    return f"{prefix}{version}"


def build(*names: str) -> dict[str, Path]:
    """Like `ensure`, but always our own build of the locked version."""
    unknown = sorted(set(names) - set(PROGRAMS))
    if unknown:
        raise ClusterError(f"unknown program {', '.join(unknown)}; known programs: {', '.join(PROGRAMS)}")
    paths: dict[str, Path] = {}
    for module, programs in by_module(names):
        packages = {name: PROGRAMS[name].package for name in programs}
        paths |= go.build(module, packages, seconds=sum(PROGRAMS[name].seconds for name in programs))
    return {name: paths[name] for name in names}


def by_module(names: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    """Group programs by module, since one command builds all programs of a module."""

    def module(name: str) -> str:
        return PROGRAMS[name].module

    for key, group in groupby(sorted(set(names), key=module), key=module):
        yield key, sorted(group)
