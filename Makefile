# Every target makes .venv by itself. pip is used as it is configured; PYTHON and WORKERS may be set.
PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
CORE := .venv/.core
READY := .venv/.ready
PIP := $(BIN)/python -m pip install --quiet -c constraints.txt
# What the inner loop needs: no compiler, no transformers, no training library.
QUICK := tests/measure tests/judge tests/store tests/compare tests/report tests/test_package.py tests/test_select.py
# Of these, what takes half of the time: thousands of damaged files, killed processes, many shards.
LATER := $(addprefix --ignore=tests/store/test_, bounds.py compaction.py damaged.py hostile.py killed.py)


BROWSERS := chromium chromium-browser google-chrome

.PHONY: browser demo test slow quick lint format docs bench faultbench routes core-tests test-xla clean

demo: $(CORE)
	$(BIN)/layertap demo

# The browser tests run in a real Chromium. It is installed where apt-get may do that; elsewhere this says that they are
# skipped, and goes on.
browser:
	@for name in $(BROWSERS); do command -v $$name && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  { apt-get install -y -qq --no-install-recommends chromium > /dev/null || \
	    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium > /dev/null; }; } && exit 0; \
	fi; \
	echo "no Chromium, and it cannot be installed here (root and apt-get are needed): browser tests will be skipped"

# `test` and `slow` together are the whole suite; CI runs both.
test: $(READY)
	@for name in $(BROWSERS); do command -v $$name > /dev/null && exit 0; done; \
	echo "no Chromium on this machine: the browser tests are skipped (apt-get install chromium, or make browser)"
	$(BIN)/pytest -n $(WORKERS) -m "not slow"

slow: $(READY)
	$(BIN)/pytest -n $(WORKERS) -m slow

quick: $(READY)
	$(BIN)/pytest -n $(WORKERS) -m "not slow" $(wildcard $(QUICK)) $(LATER)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The API reference, from the docstrings, into build/docs.
docs: $(READY)
	$(BIN)/python docs/reference.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python benchmarks/cpu.py
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/diff.py

faultbench: $(READY)
	$(BIN)/python -m benchmarks.faultbench

routes: $(READY)
	$(BIN)/python -W ignore -m benchmarks.routes

# The core on another Python or torch, without pins: make core-tests PYTHON=python3.10 TORCH='torch==2.6.*'
TORCH ?= torch
core-tests:
	test -x .venv-core/bin/python || $(PYTHON) -m venv .venv-core
	.venv-core/bin/python -m pip install --quiet '$(TORCH)' pytest pytest-timeout hypothesis pandas hatchling -e .
	.venv-core/bin/python -m pytest -m "not slow" $(wildcard $(QUICK)) tests/capture

# torch_xla wants a torch of its own version: 7 GB in an environment of its own, so neither `test` nor CI does this.
test-xla:
	test -x .venv-xla/bin/python || $(PYTHON) -m venv .venv-xla
	.venv-xla/bin/python -m pip install --quiet torch==2.9.0 torch_xla==2.9.0 transformers==5.22.2 pytest pytest-timeout -e .
	.venv-xla/bin/python -m pytest tests/capture/test_xla.py tests/fault/test_devices.py

# torch goes first and alone: where the configured index offers a CPU build it is taken, and what is installed next is
# content with it, so no CUDA packages come.
$(CORE): pyproject.toml constraints.txt $(wildcard hatch_build.py src/layertap/*/*.c)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0
	$(PIP) -e '.[view]'
	touch $@

# Compilers, training libraries, linters: several times as much as the core.
$(READY): $(CORE)
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-core .venv-xla build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist
