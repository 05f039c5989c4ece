# make demo · make test · make check · make vopr · make bench · make docs · make wheel · make deb · make rpm
# Everything is installed into .venv and target/ beneath this folder; nothing else on the machine is changed.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Says which step runs, what it waits for, and about how long it takes.
STEP := $(PYTHON) scripts/progress.py
# pip's remarks about root and about its own version are of no interest in an environment of our own.
export PIP_ROOT_USER_ACTION := ignore
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# rustup's cargo looks for its toolchains beneath $$HOME; where HOME is another (CI, containers), they still lie
# beside cargo itself.
CARGO_DIR := $(patsubst %/,%,$(dir $(shell command -v cargo 2>/dev/null)))
ifeq ($(origin RUSTUP_HOME),undefined)
ifneq ($(CARGO_DIR),)
ifneq ($(wildcard $(CARGO_DIR)/../../.rustup/toolchains),)
export RUSTUP_HOME := $(abspath $(CARGO_DIR)/../../.rustup)
endif
endif
endif

# The demo and the tests run a lightly optimised build, which `cargo test` shares. Benches and wheels are fully optimised.
PROFILE := dev
bench-data bench-zazen bench-calls bench-namespace: PROFILE := release

# zazen-vopr plants bugs in zazen-namespace, by a feature. Cargo gives all packages of one build the same features, so
# zazen-vopr is built and tested by itself: no program that is installed holds a planted bug.
TESTED := --workspace --exclude zazen-vopr
# Nobody but the tests and the benches needs these.
INSTALLED := $(TESTED) --exclude zazen-fuzz --exclude zazen-bench

# The tests mostly wait for processes: three run side by side on two cores. The tests of one file run one
# after the other.
JOBS := 3
PYTEST := $(BIN)/python -m pytest -q -rs -n $(JOBS) --dist loadfile

.PHONY: help demo test check vopr bench bench-data bench-zazen bench-calls bench-namespace bench-sim bench-viz viz-pictures docs wheel deb rpm setup prerequisites packages native install clean test-rust test-python

help:
	@sed -n 's/^## //p' Makefile

## make demo    set up, simulate, push, analyse under MPI, print what happened (writes demo-report.json)
demo: install
	@$(STEP) demo "simulating, pushing and analysing under MPI" 85 $(BIN)/python demo/demo.py

## make test    set up and run every test
test: install test-rust test-python

test-rust: prerequisites
	@$(STEP) "test 1 of 3" "building and running the Rust tests" 305 \
	  sh -c 'cargo test $(TESTED) --locked --no-fail-fast; all=$$?; cargo test --package zazen-vopr --locked && exit $$all'

test-python: install $(VENV)/.requirements-viz
	@$(STEP) "test 2 of 3" "running the Python, C and MPI tests" 315 \
	  $(PYTEST) bindings/python/tests tests
	@$(STEP) "test 3 of 3" "running the tests of the integrations" 120 $(PYTEST) integrations

## make check   formatting, lints, the house's rules (scripts/tidy.py)
check: $(VENV)/.requirements
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror examples/c/*.c bindings/c/include/zazen_mpi.h sdk/plugin/*/*.[ch]
	$(BIN)/python scripts/tidy.py
	$(BIN)/python scripts/libc_names.py
	$(BIN)/python scripts/licences.py --check

## make vopr    simulates whole clusters with faults (SEEDS=10000 of them, from FROM=0 on)
vopr: prerequisites
	cargo run --locked -p zazen-vopr -- --seeds $(or $(SEEDS),10000) --from $(or $(FROM),0)
	cargo run --locked -p zazen-vopr -- --namespace --seeds $(or $(SEEDS),10000) --from $(or $(FROM),0)

## make bench   the figures, as ratios within one run, with their spread
bench: prerequisites
	cargo build --release --locked -p zazen-bench -p zazend -p zazen-cli
	target/release/zazen-bench $(BENCH)

## make bench-data  trajectories (ROWS="xtc-frame rmsf" for some), files through fsspec, samples through PyTorch, explain
bench-data: install
	$(BIN)/python bench/data/bench_data.py $(ROWS)
	set -e; for rows in index_cost random_access files_cold_warm torch_epochs explain_cost; do $(BIN)/python bench/data/$$rows.py; done

## make bench-zazen  the Zazen paper's evaluation, run again (root; FIGURES="fig4 fig7" for some)
bench-zazen: install $(VENV)/.requirements-bench
	$(BIN)/python bench/papers/zazen/run.py $(FIGURES)

## make bench-calls  ZOID's evaluation, run again (FUSE and sshfs rows: root; FIGURES="fig4 files" for some)
bench-calls: install $(VENV)/.requirements-bench
	$(BIN)/python bench/papers/zoid/run.py $(FIGURES)

## make bench-namespace  the namespace's rates, passthrough, nodes, fail-over (root; FIGURES="library nodes" for some)
bench-namespace: install $(VENV)/.requirements-bench
	cargo build --release --locked -p zazen-namespace-client --example rates
	$(BIN)/python bench/papers/fusionfs/run.py $(FIGURES)

## make bench-sim  the simulator at two million nodes: costs, pages, the paper's curve, real daemons (PARTS="cost")
bench-sim: install
	cargo build --release --locked -p zazen-cli
	$(BIN)/python bench/sim/bench_sim.py $(PARTS)

## make bench-viz  VisIO's evaluation: remote shares, and read rates over HDFS (root; FIGURES="share" for some)
bench-viz: install $(VENV)/.requirements-bench $(VENV)/.requirements-viz
	$(BIN)/python bench/papers/visio/run.py $(FIGURES)

## make viz-pictures  the picture of docs/visualization.md, by four ranks (fetches VTK into .venv)
viz-pictures: install $(VENV)/.requirements-viz
	$(BIN)/python -m zazen.viz.generate target/viz/ocean --steps 3 --points 33
	LD_LIBRARY_PATH="$(CURDIR)/$(VENV)/lib" $(BIN)/mpiexec -n 4 $(BIN)/python examples/visualization.py \
	  target/viz/ocean/ts.vtm.series --pictures target/viz/pictures
	mkdir -p docs/images && cp target/viz/pictures/salinity-001.png docs/images/salinity.png

## make docs    API documentation of the crates into target/doc
docs: prerequisites
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

prerequisites:
	@PYTHON="$(PYTHON)" scripts/prerequisites.sh

$(VENV)/.requirements: requirements/demo.txt requirements/test.txt | prerequisites
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(STEP) "install 1 of 3" "fetching Python packages (MPI, OpenMM, MDAnalysis, test tools)" 60 \
	  $(BIN)/python -m pip install --quiet -r requirements/demo.txt -r requirements/test.txt
	@touch $@

$(VENV)/.requirements-bench: requirements/bench.txt $(VENV)/.requirements
	@$(STEP) "install" "fetching Python packages of the benches" 30 $(BIN)/python -m pip install --quiet -r requirements/bench.txt
	@touch $@

$(VENV)/.requirements-viz: requirements/viz.txt $(VENV)/.requirements
	@$(STEP) "install" "fetching VTK for the tests of visualization" 30 $(BIN)/python -m pip install --quiet -r requirements/viz.txt
	@touch $@

# pip fetches packages while cargo compiles.
install: prerequisites
	@$(MAKE) --no-print-directory --jobs=2 packages native PROFILE=$(PROFILE)
	@$(STEP) "install 3 of 3" "installing zazen into $(VENV)" 5 \
	  $(BIN)/python scripts/install.py --profile $(PROFILE) --built

packages: $(VENV)/.requirements

native: prerequisites
	@$(STEP) "install 2 of 3" "compiling zazen (cargo profile $(PROFILE))" $(if $(filter release,$(PROFILE)),600,240) \
	  cargo build $(INSTALLED) --locked --profile $(PROFILE)

## make wheel   one wheel for Python 3.11 and later and glibc 2.28 and later, into dist/
wheel: $(VENV)/.requirements
	$(BIN)/python -m pip --disable-pip-version-check install --quiet -r requirements/wheel.txt
	scripts/wheel.sh $(BIN)

## make deb     Debian packages of the programs and the C library, into dist/ (needs dpkg-dev)
deb: prerequisites
	cargo build --locked --release $(shell $(PYTHON) -c 'import tomllib; print(*("-p " + p for p in tomllib.load(open("pyproject.toml", "rb"))["tool"]["zazen"]["packages"]))')
	$(PYTHON) scripts/deb.py

## make rpm     RPM packages of the same, into dist/ (needs rpmbuild)
rpm: prerequisites
	cargo build --locked --release $(shell $(PYTHON) -c 'import tomllib; print(*("-p " + p for p in tomllib.load(open("pyproject.toml", "rb"))["tool"]["zazen"]["packages"]))')
	$(PYTHON) scripts/rpm.py

setup: install

clean:
	rm -rf $(VENV) target build dist .demo demo-report.json
