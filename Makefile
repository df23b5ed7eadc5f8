# Every target makes .venv by itself. pip is used as it is configured; PYTHON and WORKERS may be set.
PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint format bench faultbench routes test-xla clean

demo: $(READY)
	$(BIN)/layertap demo

test: $(READY)
	$(BIN)/pytest -n $(WORKERS)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

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

# torch_xla wants a torch of its own version: 7 GB in an environment of its own, so neither `test` nor CI does this.
test-xla:
	test -x .venv-xla/bin/python || $(PYTHON) -m venv .venv-xla
	.venv-xla/bin/python -m pip install --quiet torch==2.9.0 torch_xla==2.9.0 transformers==5.22.2 pytest pytest-timeout -e .
	.venv-xla/bin/python -m pytest tests/capture/test_xla.py tests/fault/test_devices.py

# torch goes first and alone: where the configured index offers a CPU build it is taken, and what is installed next is
# content with it, so no CUDA packages come.
$(READY): pyproject.toml constraints.txt $(wildcard hatch_build.py src/layertap/measure/*.c)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-xla .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist
