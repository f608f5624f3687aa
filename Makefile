# Every target sets up what it needs by itself. `make help` lists them.
DTJ_CACHE ?= $(HOME)/.cache/dtj
PYTHON    ?= python3
export DTJ_CACHE PYTHON
# Compiled modules are kept: without them every process that imports torch compiles it again, for 40 s.
unexport PYTHONDONTWRITEBYTECODE

# Made on first use, shared by every clone with the same lock file; prints its folder.
VENV = $(eval VENV := $$(shell tests/support/setup-venv.sh "$$(DTJ_CACHE)"))$(or $(VENV),$(error the Python packages could not be set up, see above))
RUN   = @PYTHONPATH=operator/src:trainer/src:. PATH="$(VENV)/bin:$$PATH" $(VENV)/bin/python -m
CODE  = operator/src trainer/src tests examples
PAGES = README.md CHANGELOG.md CONTRIBUTING.md docs charts examples
PROSE = $(sort $(PAGES) $(CODE) .ci Makefile crds images pyproject.toml operator/pyproject.toml trainer/pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help demo test lint format unit integration e2e bench bench-recovery images cluster cluster-delete clean lock

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

lint: ## format, lint, types, import contracts, links and words of prose, code blocks of the docs
	$(RUN) ruff format --check --quiet $(CODE)
	$(RUN) ruff check --quiet $(CODE)
	$(RUN) mypy
	@PYTHONPATH=operator/src:trainer/src $(VENV)/bin/lint-imports --no-logo
	@$(VENV)/bin/rumdl check --quiet --no-cache $(PAGES)
	$(RUN) tests.support.layout $(PAGES)
	$(RUN) tests.support.prose $(PROSE)
	$(RUN) tests.docs

format: ## rewrite the code the way lint wants it
	$(RUN) ruff format $(CODE)
	$(RUN) ruff check --fix $(CODE)
	@cp crds/dtj.dev_distributedtrainingjobs.yaml charts/dtj-operator/files/crd.yaml

unit: ## tests that need nothing but Python (7 to 10 minutes on two cores)
	$(RUN) pytest -q -n 2 tests/unit tests/contract tests/docs

integration: ## tests against a real kube-apiserver and etcd, and between real networks
	$(RUN) pytest -q -n 2 --dist loadgroup tests/integration

e2e: ## tests on a three-node cluster with our images and our chart
	$(RUN) pytest -q --timeout=600 tests/e2e

test: lint unit integration e2e ## all of the above, in this order

bench: ## measure, and write docs/benchmarks.md (about 40 minutes)
	$(RUN) tests.bench

bench-recovery: ## faults on real kubelets, and goodput over an hour (about 2 hours; needs make cluster's room)
	$(RUN) tests.bench recovery recovery_local goodput

demo: ## cluster, images, operator and a training run, shown live
	$(RUN) tests.demo

clean: cluster-delete ## remove the cluster and what was built in the checkout; the cache stays
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

images: ## build the operator's and the trainer's image where they are out of date
	$(RUN) tests.cluster images

cluster: ## make or reuse the three-node cluster
	$(RUN) tests.cluster create

cluster-delete: ## remove the cluster and all that came with it
	$(RUN) tests.cluster delete

lock: ## lock the dependencies again, with hashes and without download addresses
	tests/support/lock.sh $(VENV)/bin/uv
