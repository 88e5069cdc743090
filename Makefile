# The commands of this project; `make` lists them.
#
#   make demo PYTHON=python3.12         another interpreter
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo
#                                       PyTorch without CUDA, some gigabytes less to download

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
TENSORFLOW := tensorflow-cpu==2.21.0
TF_VENV := .venv-tf
PYTEST_OPTIONS := --numprocesses auto --dist loadfile
# A process for each core, and not as many threads in each.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest $(PYTEST_OPTIONS)
TF_PYTEST := OMP_NUM_THREADS=1 $(TF_VENV)/bin/pytest $(PYTEST_OPTIONS)
# What the C call path does, its Python twin must do too.
TWINS := $(patsubst %,tests/test_%.py,emit trace trace_async loop torch_backward torch_blocks torch_checkpoint \
	torch_choice torch_compiled torch_devices torch_forward torch_graphs torch_greenlets torch_interrupts torch_matrix torch_memory \
	torch_ops torch_profiler torch_unchanged)
SOURCES := pyproject.toml $(wildcard annot/native/*.c annot/native/*.h annot/native/*.py)
PROFILE := build/alexnet.sqlite
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-all lint bench clean

help:
	@echo "make demo      profile AlexNet training on this machine and print its layer table"
	@echo "make test      ruff, mypy and the whole test suite"
	@echo "make test-all  the suite, and what takes long: sanitizers, random signals, behaviour under every tool"
	@echo "make lint      ruff and mypy alone"
	@echo "make bench     what ranges cost, against the budgets (some minutes)"
	@echo "make clean     remove $(VENV) and everything that was built"

demo: $(VENV)/.installed
	@mkdir -p $(dir $(PROFILE))
	@echo "== profiling samples/alexnet.py with the embedded recorder"
	$(BIN)/annot run --collector recorder --force -o $(PROFILE) -- $(BIN)/python samples/alexnet.py

# TensorFlow's eager mode needs no C. TensorFlow has an environment of its own, without PyTorch, so that each part of the
# suite is seen to pass without the other's framework.
test: lint $(TF_VENV)/.dev
	ANNOT_DISABLE_NATIVE=1 $(PYTEST) -q $(TWINS)
	$(PYTEST)
	ANNOT_DISABLE_NATIVE=1 $(TF_PYTEST) -q tests/test_tf_gradients.py tests/test_tf_keras_models.py tests/test_tf_trace.py
	$(TF_PYTEST) tests/test_tf_*.py tests/test_samples_keras.py

# The C parts and their fuzzers under ASan and UBSan, the recorder under TSan, random signals, one program with and without
# each tool, an installation without a compiler: whatever has the marker `exhaustive`.
test-all: test
	$(PYTEST) -m exhaustive

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	MYPYPATH=tests:samples $(BIN)/mypy annot samples tests/nets.py tests/bench

bench: $(VENV)/.dev
	@for bench in tests/bench/bench_*.py; do PYTHONPATH=tests:samples $(BIN)/python $$bench || exit 1; done

clean:
	rm -rf $(VENV) $(VENV)-* build dist *.egg-info annot/native/*.so
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# PyTorch comes first: nothing that is installed later may then choose another build of it.
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
	@echo "== installing what the tests need"
	$(BIN)/python -m pip install -q --group dev
	@touch $@

$(TF_VENV)/.dev: $(SOURCES)
	@echo "== creating $(TF_VENV) with $(TENSORFLOW)"
	$(PYTHON) -m venv $(TF_VENV)
	$(TF_VENV)/bin/python -m pip install -q "pip>=25.1"
	$(TF_VENV)/bin/python -m pip install --progress-bar on $(TENSORFLOW)
	PYTHONWARNINGS=ignore $(TF_VENV)/bin/python -m pip install -q --group dev-tf -e .
	@touch $@
