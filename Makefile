# make demo · make test · make check · make vopr · make soak · make bench · make docs · make wheel · make deb · make rpm
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
# Without byte code: pip would compile some 9,000 files, and few of them are ever imported. Python compiles those,
# once, if it may keep what it compiled: images of containers forbid it, and each process would compile them anew.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --no-compile

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

# The demo and the tests run a build that is hardly optimised, and `cargo test` shares it. Benches and wheels are fully
# optimised.
PROFILE := dev
bench-data bench-objects bench-zazen bench-calls bench-namespace bench-viz bench-sim: PROFILE := release

# Nobody but the tests and the benches needs these.
NOT_INSTALLED := zazen-bench zazen-fuzz zazen-namespace-planted zazen-vopr
INSTALLED := --workspace $(addprefix --exclude ,$(NOT_INSTALLED))

# The tests mostly wait for processes: more run side by side than there are cores. The tests of one file run
# one after the other, and the longest files come first (conftest.py).
JOBS := 3
PYTEST := $(BIN)/python -m pytest -q -rs --dist loadfile --no-loadscope-reorder --dearest 12
# A workspace of its own, of 170 crates that nothing else needs: docs/decisions/0011-object-stores.md.
OF_OBJECTS := --manifest-path crates/zazen-objects/Cargo.toml --target-dir target/objects --locked
OBJECTS := cargo build $(OF_OBJECTS)
OBJECTS_TEST := cargo test --quiet $(OF_OBJECTS)

RUST_TESTS := $(PYTHON) scripts/rust_tests.py --locked

.PHONY: help demo test check check-rust check-python vopr soak bench bench-data bench-objects bench-zazen bench-calls bench-namespace bench-sim bench-viz viz-pictures docs wheel deb rpm recipes setup prerequisites packages packages-test native install clean test-rust test-python test-rust-built test-rust-run test-python-run test-integrations-run test-objects-run objects

help:
	@sed -n 's/^## //p' Makefile

## make demo    set up, simulate, push, analyse under MPI, print what happened (writes demo-report.json)
demo: install
	@$(STEP) demo "simulating, pushing and analysing under MPI" 85 $(BIN)/python demo/demo.py

## make test    set up and run every test
# The Rust tests are compiled first: that keeps all cores busy. The tests wait for processes and clocks most
# of the time, so three of the four kinds run side by side.
test: install
	@$(MAKE) --no-print-directory --jobs=2 packages-test test-rust-built
	@$(MAKE) --no-print-directory --keep-going --jobs=3 test-rust-run test-python-run test-objects-run test-integrations-run

test-rust-built: prerequisites
	@$(STEP) "test 1 of 5" "compiling the Rust tests" 130 $(RUST_TESTS) --no-run --workspace

test-rust-run:
	@$(STEP) "test 2 of 5" "running the Rust tests" 240 $(RUST_TESTS) --jobs 2 --workspace

test-python-run:
	@$(STEP) "test 3 of 5" "running the Python, C and MPI tests" 380 $(PYTEST) -n $(JOBS) --ignore tests/objects bindings/python/tests tests

# What it builds is needed by these tests only, and it is built while others wait. Last, it would wait for the
# compiler alone; so would it as a prerequisite, which waits for a free job behind the integrations.
# The server that checks signatures takes minutes to compile (scripts/install-versitygw.sh). Without it, its tests
# are skipped and say so.
test-objects-run:
	@$(MAKE) --no-print-directory objects
	@$(STEP) "test 4 of 5" "running the tests of object stores" 90 \
	  sh -c '$(OBJECTS_TEST); all=$$?; $(PYTEST) -n 2 tests/objects && exit $$all'

test-integrations-run:
	@$(STEP) "test 5 of 5" "running the tests of the integrations" 180 $(PYTEST) -n $(if $(filter 1,$(JOBS)),1,2) integrations

## make test-rust, make test-python   one half of the tests
test-rust: install test-rust-built test-rust-run
test-python: install packages-test test-python-run test-integrations-run

## make check   formatting, lints, the house's rules (scripts/tidy.py)
# pip fetches packages while clippy compiles.
check: prerequisites
	@$(MAKE) --no-print-directory --keep-going --jobs=2 check-python check-rust

check-rust: prerequisites
	cargo fmt --all --check
	cargo fmt --manifest-path crates/zazen-objects/Cargo.toml --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy $(OF_OBJECTS) --all-targets -- -D warnings

check-python: $(VENV)/.requirements-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror examples/c/*.c bindings/c/include/zazen_mpi.h sdk/plugin/*/*.[ch]
	$(BIN)/python scripts/tidy.py
	$(BIN)/python scripts/libc_names.py
	$(BIN)/python scripts/features.py --check
	$(BIN)/python scripts/licences.py --check

## make objects  the program that reads object stores for a daemon, into target/objects
objects: prerequisites
	@$(STEP) objects "compiling zazen-objects (cargo profile $(PROFILE))" 120 $(OBJECTS) --profile $(PROFILE)

## make vopr    simulates whole clusters with faults (SEEDS=10000 of them, from FROM=0 on)
vopr: prerequisites
	cargo run --locked -p zazen-vopr -- --seeds $(or $(SEEDS),10000) --from $(or $(FROM),0)
	cargo run --locked -p zazen-vopr -- --namespace --seeds $(or $(SEEDS),10000) --from $(or $(FROM),0)

## make soak    four nodes with work and random faults, compared with the truth (HOURS=0.17; SEED=…; OTHER=programs)
soak: install packages-test
	$(BIN)/python tests/soak/soak.py $(if $(HOURS),--hours $(HOURS)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(OTHER),--other "$(OTHER)")

## make bench   the figures, as ratios within one run, with their spread
bench: prerequisites
	cargo build --release --locked -p zazen-bench -p zazend -p zazen-cli
	target/release/zazen-bench $(BENCH)

## make bench-data  trajectories (ROWS="xtc-frame rmsf" for some), files through fsspec, samples through PyTorch, explain
bench-data: install packages-test
	$(BIN)/python bench/data/bench_data.py $(ROWS)
	set -e; for rows in index_cost random_access files_cold_warm torch_epochs explain_cost; do $(BIN)/python bench/data/$$rows.py; done

## make bench-objects  cold frames of an object store through a daemon, against the same library bare
bench-objects: install objects $(VENV)/.requirements-bench
	$(BIN)/python bench/data/object_store.py

## make bench-zazen  the Zazen paper's evaluation, run again (root; FIGURES="fig4 fig7" for some)
bench-zazen: install $(VENV)/.requirements-bench
	$(BIN)/python bench/papers/zazen/run.py $(FIGURES)

## make bench-calls  ZOID's evaluation, run again (FUSE and sshfs rows: root; FIGURES="fig4 files" for some)
bench-calls: install $(VENV)/.requirements-bench
	$(BIN)/python bench/papers/zoid/run.py $(FIGURES)

## make bench-namespace  the namespace: rates, passthrough, nodes, fail-over, peers, IOR, BLAST (root; FIGURES="library nodes" for some)
bench-namespace: install $(VENV)/.requirements-bench
	cargo build --release --locked -p zazen-namespace-client --example rates
	$(BIN)/python bench/papers/fusionfs/run.py $(FIGURES)

## make bench-sim  the simulator at two million nodes: costs, pages, the paper's curve, real daemons (PARTS="cost")
bench-sim: install packages-test
	cargo build --release --locked -p zazen-cli
	$(BIN)/python bench/sim/bench_sim.py $(PARTS)

## make bench-viz  VisIO's evaluation: remote shares, read rates over HDFS (root; FIGURES="share weak" for some)
bench-viz: install $(VENV)/.requirements-bench $(VENV)/.requirements-viz
	$(BIN)/python bench/papers/visio/run.py $(FIGURES)

## make viz-pictures  the pictures of docs/visualization.md, by four ranks (fetches VTK into .venv)
viz-pictures: install packages-test
	$(BIN)/python -m zazen.viz.generate target/viz/ocean --steps 3 --points 33
	LD_LIBRARY_PATH="$(CURDIR)/$(VENV)/lib" $(BIN)/mpiexec -n 4 $(BIN)/python examples/visualization.py \
	  target/viz/ocean/ts.vtm.series --pictures target/viz/pictures
	mkdir -p docs/images && cp target/viz/pictures/salinity-001.png docs/images/salinity.png
	$(BIN)/python examples/protein_gallery.py make target/viz/adk
	LD_LIBRARY_PATH="$(CURDIR)/$(VENV)/lib" $(BIN)/mpiexec -n 4 $(BIN)/python examples/protein_gallery.py \
	  draw target/viz/adk/adk.vtm.series --pictures target/viz/pictures --steps 0 50 97
	cp target/viz/pictures/adk-0*.png docs/images/

## make docs    API documentation of the crates into target/doc
docs: prerequisites
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

prerequisites:
	@PYTHON="$(PYTHON)" scripts/prerequisites.sh

# What the demo imports is imported once here: its four ranks would each compile it, while they are timed.
$(VENV)/.requirements: requirements/demo.txt | prerequisites
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(STEP) "install 1 of 3" "fetching Python packages (MPI, OpenMM, MDAnalysis)" 25 \
	  sh -c '$(PIP) -r requirements/demo.txt && $(BIN)/python -W ignore -c "import MDAnalysis, mpi4py, openmm.app, waterdynamics"'
	@touch $@

$(VENV)/.requirements-test: requirements/test.txt $(VENV)/.requirements
	@$(STEP) "packages" "fetching Python packages of the tests" 40 $(PIP) -r requirements/test.txt
	@touch $@

$(VENV)/.requirements-bench: requirements/bench.txt $(VENV)/.requirements-test
	@$(STEP) "packages" "fetching Python packages of the benches" 30 $(PIP) -r requirements/bench.txt
	@touch $@

$(VENV)/.requirements-viz: requirements/viz.txt $(VENV)/.requirements-test
	@$(STEP) "packages" "fetching VTK for the tests of visualization" 30 $(PIP) -r requirements/viz.txt
	@touch $@

# pip fetches packages while cargo compiles.
install: prerequisites
	@$(MAKE) --no-print-directory --jobs=2 packages native PROFILE=$(PROFILE)
	@$(STEP) "install 3 of 3" "installing zazen into $(VENV)" 5 \
	  $(BIN)/python scripts/install.py --profile $(PROFILE)

packages: $(VENV)/.requirements

packages-test: $(VENV)/.requirements-viz

native: prerequisites
	@$(STEP) "install 2 of 3" "compiling zazen (cargo profile $(PROFILE))" $(if $(filter release,$(PROFILE)),600,180) \
	  cargo build $(INSTALLED) --locked --profile $(PROFILE)

## make wheel   one wheel for Python 3.11 and later and glibc 2.28 and later, into dist/
wheel: $(VENV)/.requirements
	$(BIN)/python -m pip --disable-pip-version-check install --quiet -r requirements/wheel.txt
	scripts/wheel.sh $(BIN)

## make deb     Debian packages of the programs and the C library, into dist/ (needs dpkg-dev)
deb: prerequisites
	cargo build --locked --release $(shell $(PYTHON) -c 'import tomllib; print(*("-p " + p for p in tomllib.load(open("pyproject.toml", "rb"))["tool"]["zazen"]["packages"]))')
	$(OBJECTS) --release
	$(PYTHON) scripts/deb.py --objects target/objects/release/zazen-objects

## make rpm     RPM packages of the same, into dist/ (needs rpmbuild)
rpm: prerequisites
	cargo build --locked --release $(shell $(PYTHON) -c 'import tomllib; print(*("-p " + p for p in tomllib.load(open("pyproject.toml", "rb"))["tool"]["zazen"]["packages"]))')
	$(OBJECTS) --release
	$(PYTHON) scripts/rpm.py --objects target/objects/release/zazen-objects

## make recipes  recipes for Spack and conda with an archive of the sources, into dist/ (BASE=URL of the archive)
recipes:
	$(PYTHON) scripts/recipes.py $(if $(BASE),--base "$(BASE)")

setup: install

clean:
	rm -rf $(VENV) target build dist .demo demo-report.json
