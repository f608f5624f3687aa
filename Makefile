# Every target sets up what it needs. `make help` lists the targets.
DTJ_CACHE ?= $(HOME)/.cache/dtj
PYTHON    ?= python3
export DTJ_CACHE PYTHON
# Keep bytecode: otherwise every process that imports torch compiles it again, which takes 40 s.
unexport PYTHONDONTWRITEBYTECODE

# Created on first use, shared by all clones with the same lock files; prints its folder.
VENV = $(eval VENV := $$(shell tests/support/setup-venv.sh "$$(DTJ_CACHE)"))$(or $(VENV),$(error the Python packages could not be set up, see above))
RUN   = @PYTHONPATH=operator/src:trainer/src:client/src:. PATH="$(VENV)/bin:$$PATH" $(VENV)/bin/python -m
CODE  = operator/src trainer/src client/src tests examples

.DEFAULT_GOAL := help
.PHONY: help demo demo-queue check test lint format unit process integration e2e gpu soak docs mutants bench bench-recovery images release audit cluster cluster-delete clean lock

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

check: ## before each commit: lint, and the unit tests that execute changed lines
	$(RUN) tests.suites check

lint: ## check format, style, types, import contracts; links, words and code blocks of the docs
	$(RUN) tests.suites lint

format: ## format the code, and fix what ruff can fix
	$(RUN) ruff format $(CODE)
	$(RUN) ruff check --fix $(CODE)
	$(RUN) tests.docs.operator_metrics
	$(RUN) tests.docs.api_reference
	$(RUN) tests.docs.chart_values
	$(RUN) tests.docs.loop_lines
	@cp crds/dtj.dev_distributedtrainingjobs.yaml charts/dtj-operator/files/crd.yaml

unit: ## tests that run in one process
	$(RUN) tests.suites unit

process: ## tests with real ranks, agents, sockets and network namespaces; no cluster
	$(RUN) tests.suites process

K8S ?=
integration e2e: export DTJ_TEST_KUBERNETES = $(K8S)
integration: ## tests against a real kube-apiserver and etcd; of another version: make integration K8S=1.36
	$(RUN) tests.suites integration

e2e: ## tests on a four-node cluster with our images and our chart; with a newer control plane: make e2e K8S=1.36
	$(RUN) tests.suites e2e

gpu: ## tests on a GPU; skipped with the reason where torch finds none
	$(RUN) tests.suites gpu

test: ## lint and all suites; print how long each took
	$(RUN) tests.suites test

SUITES ?= unit process integration e2e
RUNS   ?= 10
soak: ## run suites many times, half of them on a busy machine: make soak SUITES=unit RUNS=10
	$(RUN) tests.suites soak $(SUITES) --runs $(RUNS)

AREAS ?=
mutants: ## change the code a little, many times, and list the changes that no test detects: make mutants AREAS="plan crd"
	$(RUN) tests.mutants $(AREAS)

bench: ## measure, and write docs/benchmarks.md (about 40 minutes)
	$(RUN) tests.bench

bench-recovery: ## faults on real kubelets, and goodput over an hour (about 2 hours, on make cluster)
	$(RUN) tests.bench recovery recovery_local goodput

docs: ## build the site of the docs in build/site
	$(RUN) tests.docs.site

demo: ## create a cluster, install the operator, and show a training run live
	$(RUN) tests.demo

demo-queue: ## a real Kueue preempts a job and admits it again: make demo-queue DTJ_TEST_KUEUE=/path/to/manager
	$(RUN) tests.demo_queue

clean: cluster-delete ## remove the cluster and all build output; keep the cache
	rm -rf build .testmondata* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

images: ## build the operator's and the trainer's image if they are out of date
	$(RUN) tests.cluster images

REGISTRY ?=
KEY      ?=
release: ## push images and chart, write wheels and bills of materials: make release REGISTRY=registry.example.com/dtj KEY=release.key
	$(RUN) tests.release $(or $(REGISTRY),$(error name a registry: make release REGISTRY=registry.example.com/dtj)) $(if $(KEY),--key $(KEY))

ADVISORIES ?=
audit: ## look up all locked Python packages in PyPI's advisories, or in a copy: make audit ADVISORIES=folder
	$(RUN) tests.release.audit $(if $(ADVISORIES),--advisories $(ADVISORIES))

cluster: ## create the four-node cluster, or reuse the existing one
	$(RUN) tests.cluster create

cluster-delete: ## remove the cluster and everything created with it
	$(RUN) tests.cluster delete

lock: ## lock the dependencies again, with hashes and without download addresses
	tests/support/lock.sh $(VENV)/bin/uv
