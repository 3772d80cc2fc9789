# Each target makes .venv by itself. `make demo` and `make test` are the two commands of README.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# a test of a daemon waits half of its time
WORKERS ?= $(shell expr $$(nproc) + 2)
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal

COMPILED := build/compiled
# runs of the simulation that both builds make
SEEDS := 24
# what the Debian package runs on: the Python of Debian
DEB_PYTHON ?= /usr/bin/python3

# tests start some thousand daemons and commands: each would compile its sources anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all check bench counts faults mutants mutants-sql sim soak dist deb install uninstall compiled test-compiled format schema clean

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
	$(PYTEST) --numprocesses $(shell nproc) -m 'not slow' tests/unit tests/sim tests/mutation

# options in BENCH, as `make bench BENCH=--quick` or `make bench BENCH='--only P1 --report out'`
bench: $(VENV)/.dev
	$(BIN)/python -m tests.bench $(BENCH)

counts: $(VENV)/.dev
	$(BIN)/python -m tests.counts

faults: $(VENV)/.dev
	DROVER_FAULTS=full $(BIN)/python -m tests.faults

# small faults that no test sees: of MODULE, as `make mutants MODULE=scheduler/policy/claims.py`, or of model/ and policy/;
# of other packages, as `make mutants MODULE=scheduler/cli`, in the functions that unit tests reach.
# Options in MUTANTS, as `make mutants MUTANTS='--minutes 60 --seed 7'`
mutants: $(VENV)/.dev
	nice -n 15 $(BIN)/python -m tests.mutation $(MODULE) $(MUTANTS)

# the same of the SQL in schema/: of OBJECT, as `make mutants-sql OBJECT=drover.command`, or of all of it
mutants-sql: $(VENV)/.dev
	nice -n 15 $(BIN)/python -m tests.mutation.sql $(OBJECT) $(MUTANTS)

sim: $(VENV)/.dev
	DROVER_SIM_STEPS=1000000 $(PYTEST) tests/sim

# the source and the wheel of pure Python, into dist/
dist: $(VENV)/.dev
	rm -rf build/dist
	$(BIN)/python -m build --outdir build/dist .
	mkdir -p dist
	cp build/dist/* dist

# the package for the Debian of this machine, into dist/; root is not needed
deb: dist
	etc/debian/build $(BIN)/pip $(DEB_PYTHON) build/dist/*.whl dist

# into an environment of its own below PREFIX, with commands, manuals and a unit; WHAT may be a wheel of `make compiled`.
# DESTDIR is put before all of it, for packages
PREFIX ?= /usr/local
SYSCONFDIR ?= $(if $(filter /usr,$(PREFIX)),/etc,$(PREFIX)/etc)
WHAT ?= .
EXTRAS ?= embedded,agents,web,metrics

install: $(VENV)/.demo
	etc/install $(BIN)/pip $(PYTHON) '$(WHAT)[$(EXTRAS)]' '$(DESTDIR)' '$(PREFIX)'
	install -d '$(DESTDIR)$(SYSCONFDIR)/drover/conf.d'
	test -e '$(DESTDIR)$(SYSCONFDIR)/drover/drover.toml' || \
	  install -m 644 etc/drover.toml '$(DESTDIR)$(SYSCONFDIR)/drover/drover.toml'

# the configuration and the queue stay
uninstall:
	etc/uninstall '$(DESTDIR)' '$(PREFIX)'

# an hour of real faults, and 10 million simulated steps beside it, then a table of what was tried and lost: for a nightly
# run. Options in SOAK, as `make soak SOAK='--minutes 5 --steps 100000 --seed 7'`
soak: $(VENV)/.dev
	nice $(BIN)/python -m tests.soak $(SOAK)

# the optional wheel, into dist/, with the modules compiled that pyproject.toml lists; it takes a C compiler and minutes
compiled: $(COMPILED)/.wheel

$(COMPILED)/.wheel: $(VENV)/.demo pyproject.toml hatch_build.py $(shell find scheduler agents schema etc man -type f -not -name '*.pyc')
	rm -rf $(COMPILED)
	HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(COMPILED) .
	mkdir -p dist
	cp $(COMPILED)/*.whl dist
	touch $@

$(COMPILED)/.dev: $(COMPILED)/.wheel
	$(PYTHON) -m venv $(COMPILED)/$(VENV)
	$(COMPILED)/$(BIN)/pip install --quiet --disable-pip-version-check "$$(echo $(COMPILED)/*.whl)[test]"
	ln -s $(VENV)/lib/python3*/site-packages/scheduler $(COMPILED)
	touch $@

# that wheel, installed, meets the tests of this directory, without those that run nothing of it, and an error at each
# fault point; and its simulation is that of the sources, event for event
test-compiled: $(VENV)/.dev $(COMPILED)/.dev
	cp -r $(filter-out build dist scheduler,$(wildcard *)) $(COMPILED)
	cd $(COMPILED) && $(BIN)/drover --version | grep -F '(compiled)'
	$(BIN)/python -m tests.sim.digest $(SEEDS) >$(COMPILED)/digest & \
	  (cd $(COMPILED) && $(BIN)/python -m tests.sim.digest $(SEEDS) >digest.compiled) && wait $$!
	cmp $(COMPILED)/digest $(COMPILED)/digest.compiled
	cd $(COMPILED) && $(PYTEST) -m 'not slow or compiled' $(addprefix --ignore tests/,agents counts database metrics mutation web)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format --quiet

schema: $(VENV)/.dev
	$(BIN)/python -m tests.dump_schema

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis dist build
