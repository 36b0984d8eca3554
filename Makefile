# Everything a developer runs. `make` alone lists the targets.
#
#   PYTHON=python3.12 make venv        another interpreter
#   make test PYTEST_ARGS="-k balance" only some Python tests
#   SEED=7 SOAK_SECONDS=60 make soak   repeat a soak, or a shorter one
#   JOBS=8 make test                   more compilers at once (default: one per core)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:

PYTHON ?= python3
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST_ARGS ?=
BENCH_ARGS ?=
SOAK_SECONDS ?= 600
SEED ?=

VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
BUILD := build
# The environment comes first: cmake, ninja and mpiexec are found there if it has its own.
export PATH := $(BIN):$(PATH):/usr/sbin:/sbin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pip's own caution about root does not apply to a private environment.
export PIP_ROOT_USER_ACTION := ignore

NATIVE_SOURCES := $(shell find src include CMakeLists.txt -name '*.cc' -o -name '*.h' -o -name '*.inl' -o -name '*.cuh' -o -name '*.cu' \
	-o -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name CMakeLists.txt -o -name '*.cmake')
CPP_FILES = $(shell find src include tests -name '*.cc' -o -name '*.h' -o -name '*.inl' -o -name '*.cuh' -o -name '*.cu')
CYTHON_FILES = $(shell find src -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi')
PYTHON_DIRS := src tests tools $(wildcard perf)

.PHONY: help venv build demo test test-python test-native test-asan test-tsan test-cuda test-verbs check format bench bench-faults bench-plans soak clean distclean lab-tools

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

# ---------------------------------------------------------------------------------------------------- set up

REQUIREMENTS := $(VENV)/requirements.txt

venv: $(REQUIREMENTS) ## private Python environment in .venv with all that is needed to build, test and check

$(BIN)/python:
	@tools/check_system.sh "$(PYTHON)"
	$(PYTHON) -m venv $(VENV)

# The list is the stamp: it is replaced only after everything on it is installed.
$(REQUIREMENTS): $(BIN)/python pyproject.toml tools/requirements.py
	@tools/check_system.sh $(BIN)/python
	$(BIN)/python -m pip install -q 'pip>=23.1'
	@$(BIN)/python tools/requirements.py dev > $@.new
	if ! cmp -s $@.new $@; then $(BIN)/python -m pip install -q -r $@.new; fi
	@mv $@.new $@

build: $(BUILD)/dev.stamp ## compile the native core and install the package in place

$(BUILD)/dev.stamp: $(REQUIREMENTS) pyproject.toml $(NATIVE_SOURCES)
	@mkdir -p $(BUILD)
	CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(BIN)/python -m pip install -q --no-build-isolation --no-deps \
		-Cbuild-dir=$(BUILD)/dev -e .
	@touch $@

lab-tools:
	@tools/lab_tools.sh

demo: build lab-tools ## train on an emulated cluster while a NIC is cut, and draw what happens
	$(BIN)/r2ccl-lab demo

# ---------------------------------------------------------------------------------------------------- tests

test: build lab-tools ## every test that this machine can run; a skipped one says what is missing
	$(MAKE) --no-print-directory test-python
	$(MAKE) --no-print-directory test-cuda
	$(MAKE) --no-print-directory test-native
	$(MAKE) --no-print-directory test-asan
	$(MAKE) --no-print-directory test-tsan
	$(MAKE) --no-print-directory test-verbs

test-python: build ## the Python tests alone
	$(BIN)/python -m pytest -q -rfEs $(PYTEST_ARGS)

test-native: $(REQUIREMENTS) ## the C++ tests
	tools/native_tests.sh $(BUILD)/native "" $(JOBS)

test-asan: $(REQUIREMENTS) ## the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	tools/native_tests.sh $(BUILD)/asan address $(JOBS)

test-tsan: $(REQUIREMENTS) ## the C++ tests under ThreadSanitizer
	tools/native_tests.sh $(BUILD)/tsan thread $(JOBS)

GUEST := $(BIN)/python -m tools.rdma_guest
GUEST_ARGS ?=

test-verbs: build ## the tests over soft RDMA, in a guest machine (installs qemu and Debian's kernel for it, in its own folder)
	tools/rdma_guest/packages.sh
	$(GUEST) --timeout 600 $(GUEST_ARGS) -- $(BIN)/python -m pytest -q -rfEs -p no:cacheprovider tests/verbs $(PYTEST_ARGS)

# CuPy's arrays need no GPU to exist; the package is large, so that only these tests ask for it.
CUPY := $(BUILD)/cupy.stamp
$(CUPY): $(REQUIREMENTS)
	@mkdir -p $(BUILD)
	$(BIN)/python -c 'import cupy' 2>/dev/null || $(BIN)/python -m pip install -q 'cupy-cuda13x>=13.6'
	@touch $@

test-cuda: build $(CUPY) ## the CUDA path on a driver without a GPU, and each of its fences and waits removed once
	tools/native_tests.sh $(BUILD)/native "" $(JOBS) cuda
	$(BIN)/python -m pytest -q -rfEs tests/cuda $(PYTEST_ARGS)
	tools/native_tests.sh $(BUILD)/tsan thread $(JOBS) cuda
	$(BIN)/python tests/cuda/mutants.py $(BUILD)/tsan

soak: build lab-tools ## ten minutes of random faults and recoveries while all collectives run, every element compared
	$(BIN)/python tests/soak/soak.py --seconds $(SOAK_SECONDS) $(if $(SEED),--seed $(SEED))

# ---------------------------------------------------------------------------------------------------- quality

CHECKS := check-ruff check-types check-cython check-cpp check-layers check-spelling
.PHONY: $(CHECKS)

check: $(CHECKS) ## what a change must pass besides its tests: style, types, layers, spelling (make -k: all at once)

check-ruff: $(REQUIREMENTS)
	$(BIN)/ruff check $(PYTHON_DIRS)
	$(BIN)/ruff format --check $(PYTHON_DIRS)

check-types: $(REQUIREMENTS)
	$(BIN)/mypy

check-cython: $(REQUIREMENTS)
	$(if $(CYTHON_FILES),$(BIN)/cython-lint $(CYTHON_FILES))

check-cpp: $(REQUIREMENTS)
	$(if $(CPP_FILES),$(BIN)/clang-format --dry-run -Werror $(CPP_FILES))

check-layers: $(REQUIREMENTS)
	PYTHONPATH=src $(BIN)/lint-imports --no-cache
	$(BIN)/python tools/check_includes.py

check-spelling: $(REQUIREMENTS)
	$(BIN)/codespell

format: $(REQUIREMENTS) ## rewrite the sources in the project's style
	$(BIN)/ruff format $(PYTHON_DIRS)
	$(BIN)/ruff check --fix $(PYTHON_DIRS)
	$(if $(CPP_FILES),$(BIN)/clang-format -i $(CPP_FILES))

bench: build ## side by side with other libraries (installs them in environments of their own)
	$(BIN)/python perf/compare.py $(BENCH_ARGS)

bench-faults: build lab-tools ## what failures cost, beside other libraries and MPTCP (12 minutes; BENCH_ARGS=--quick: 3)
	$(BIN)/python perf/faults.py $(BENCH_ARGS)

bench-plans: build lab-tools ## what a lost NIC costs under each algorithm: measured, predicted, bound (13 minutes; BENCH_ARGS=--quick: 6)
	$(BIN)/python perf/plans.py $(BENCH_ARGS)

clean: ## remove what was built; the environment stays
	rm -rf $(BUILD) dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests tools perf -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## remove the environments too
	rm -rf $(VENV) .venv-*
