# Each target makes .venv by itself. `make demo` and `make test` are the two commands of README.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= $(shell expr $$(nproc) + 1)
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal

.PHONY: demo test test-all check bench counts faults sim format schema clean

$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[embedded,agents]'
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/drover demo $(DIR)

test: $(VENV)/.dev
	$(PYTEST) -m 'not slow'

# what `make test` leaves out
test-all: $(VENV)/.dev
	$(PYTEST) -m 'slow and not alone'
	$(BIN)/pytest -m alone

check: $(VENV)/.dev
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache >/dev/null
	$(PYTEST) -m 'not slow' tests/unit tests/sim

# options in BENCH, as `make bench BENCH=--quick` or `make bench BENCH='--only P1 --report out'`
bench: $(VENV)/.dev
	$(BIN)/python -m tests.bench $(BENCH)

counts: $(VENV)/.dev
	$(BIN)/python -m tests.counts

faults: $(VENV)/.dev
	DROVER_FAULTS=full $(BIN)/python -m tests.faults

sim: $(VENV)/.dev
	DROVER_SIM_STEPS=1000000 $(PYTEST) tests/sim

format: $(VENV)/.dev
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format --quiet

schema: $(VENV)/.dev
	$(BIN)/python -m tests.dump_schema

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis dist
