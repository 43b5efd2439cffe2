# The front door. `make quickstart` trains a model to a rising reward; `make test` proves everything; `make check` is fast.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Images of development environments set it; without bytecode every process compiles torch again, for three seconds.
unexport PYTHONDONTWRITEBYTECODE

# A cluster of your own is used only when this command line names it: make test KUBECONFIG=~/.kube/kind
ifeq ($(origin KUBECONFIG),command line)
export KUBECONFIG
else
unexport KUBECONFIG
endif

.PHONY: help setup k8s-tools quickstart test check format proto crd chart docs bench chaos clean

help:  ## Show the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Install what is missing: uv, .venv, Redis
	@tools/setup

k8s-tools:  ## Build Kubernetes, etcd, containerd, helm … for the tests, once, into ~/.cache/areal (11 minutes)
	@tools/k8s/build

quickstart: setup  ## Set up everything, make the small model, train it to a rising reward (a few minutes on 2 cores)
	@$(PY) examples/digits_data.py data/digits
	@$(PY) -m areal_trainer.init_model --out models/digits-1m --sft data/digits/sft.jsonl --validation data/digits/validation.jsonl
	@.venv/bin/areal run examples/quickstart.yaml --fresh

check: setup  ## Format, lint, types, import contracts, proto drift, unit tests (under 90 s)
	@tools/tiers --check

.PHONY: static
static:
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	tools/proto --check
	$(PY) -m areal.spec.crd --check
	tools/chart --check
	.venv/bin/lint-imports
	.venv/bin/mypy services trainer

test: setup  ## Set up and pass all tests: every tier runs, whatever fails; a table at the end
	@tools/tiers

.PHONY: locks
locks: setup  ## Tell whether what each image installs still has a solution (needs a package index)
	@tools/locks

format:  ## Format the code and fix what lint can fix
	.venv/bin/ruff format . && .venv/bin/ruff check --fix .

proto:  ## Regenerate the gRPC code from protos/
	tools/proto

chart:  ## Regenerate the chart's schema, pages of values, dashboards, table of roles
	tools/chart

crd:  ## Regenerate the custom resource definitions from the job file's models
	$(PY) -m areal.spec.crd

docs: setup  ## Regenerate the generated pages of docs/, and the site from all of them into site/
	$(PY) -m areal.spec.reference docs/rljob.md
	$(PY) -m areal.spec.conditions_page docs/conditions.md
	$(PY) -m areal.spec.algorithms_page docs/algorithms.md
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build -q
	@echo 'open site/index.html'

bench: setup  ## Benchmarks: ratios to a limit measured in the same run, as a table and JSON
	@command -v bwrap >/dev/null || echo 'bubblewrap is not installed: reward.py goes without it'
	@for file in bench/bench_*.py bench/reward.py bench/rollout.py bench/weights.py; do $(PY) $$file || exit 1; done

chaos: setup  ## A hundred thousand schedules, new examples, every crash test on real processes, ten thousand steps that must not grow
	$(PY) -m areal.sim.main --schedules 100000 --jobs 2
	$(PY) -m pytest -q -n 2 --dist loadfile --hypothesis-profile=explore -m hypothesis tests
	AREAL_GENERATED_SPECS=5000 $(PY) -m pytest -q tests/spec/test_spec_api_server.py -k generated
	$(PY) -m pytest -q tests/data/test_data_gym_tasks.py --gym-rows 40
	$(PY) -m pytest -q tests/system/test_system_crashes.py tests/system/test_system_fleet.py
	$(PY) -m pytest -q -s tests/system/test_system_soak.py --soak-steps 10000

clean:  ## Remove runs, data and models made here (not the environment)
	rm -rf runs data models
