# make demo | make test | make test-all: each installs what it needs into .venv, given Python 3.11 or newer and make.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Two stamps: what the demo needs, and everything else on top of it in the same environment. The demo compiles only the
# modules that it imports, which saves a third of the installation; the second step compiles the rest.
DEMO := $(VENV)/.demo-installed
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# PyTorch without CUDA is a download of 190 MB; the default one on Linux brings CUDA, several gigabytes.
CPU_TORCH ?= https://download.pytorch.org/whl/cpu
EXTRAS := sim,jax,flower,nvflare,tensorboard,torchft,watch,metrics
# Another machine's variables must not leak into the checks.
unexport PYTHONPATH PYTHONHOME
export PYTHONDONTWRITEBYTECODE := 1

.PHONY: demo shots docs tables results test test-all test-pythons lint types layers bench clean help

help:
	@echo "make demo      a federation under attack, with a table and an HTML report"
	@echo "make test      every check: ruff, pyright, import layers, pytest (without the slow tests), numerics as elsewhere"
	@echo "make test-all  the same with the slow tests (needs chromium and chromedriver), all of it as elsewhere"
	@echo "make test-pythons  the tests under every declared Python, without PyTorch"
	@echo "make docs      the documentation, built strictly into site/index.html"
	@echo "make shots     every page from small real runs, as pictures at two widths in light and dark, in shots/"
	@echo "make tables    names, exports and rows that follow from the tables of rules and attacks"
	@echo "make results   everything in results/, from the stores there, and the tables that quote it"
	@echo "make bench     speed and memory against the plain mean and the peers"

$(DEMO): pyproject.toml constraints.txt
	@for python in $(PYTHON) python3.12 python3.13 python3; do \
		$$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
		echo "$$python -m venv $(VENV)"; $$python -m venv $(VENV) && exit 0; \
	done; \
	echo "make: no Python 3.11 or newer with venv was found: install one (Debian: python3.11-venv), or name it: make PYTHON=..." >&2; exit 1
	@command -v nvidia-smi >/dev/null || \
		$(PIP) --no-deps --retries 0 --timeout 10 --no-compile --index-url $(CPU_TORCH) torch 2>/dev/null || \
		echo "make: no PyTorch at $(CPU_TORCH): the build of your default index is installed instead"
	$(PIP) --no-compile --editable ".[sim]"
	touch $@

$(STAMP): $(DEMO)
	$(PIP) --upgrade "pip>=25.1"
	$(PIP) --editable ".[$(EXTRAS)]" --group test --group docs
	$(BIN)/python -m compileall -q -j 2 $(VENV)/lib || true
	touch $@

demo: $(DEMO)
	PYTHONDONTWRITEBYTECODE= $(BIN)/honestly demo --out demo

docs: $(STAMP)
	$(BIN)/python docs/build.py

tables: $(STAMP)
	$(BIN)/python docs/exports.py
	$(BIN)/python docs/tables.py

results: $(STAMP)
	$(BIN)/python results/make.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell *.md docs src examples tests benchmarks results/preface.md

types: $(STAMP)
	$(BIN)/pyright

layers: $(STAMP)
	$(BIN)/lint-imports

# What depends on the kernels of a BLAS, on NumPy's own and on the compiled programs.
NUMERICS := tests/test_numerics.py tests/engine/passes/test_blas.py tests/engine/passes/test_host.py \
	tests/engine/passes/test_ranking.py
# The same once more as on other machines: OpenBLAS without AVX-512, NumPy without what its baseline lacks, no compiler.
define as-elsewhere
	OPENBLAS_CORETYPE=Haswell $(BIN)/pytest $(1)
	NPY_DISABLE_CPU_FEATURES="$$($(BIN)/python tests/reduced.py)" $(BIN)/pytest $(1)
	$(BIN)/pytest --plain $(1)
endef

test: lint types layers
	$(BIN)/pytest -m "not slow and not gpu" -n 2 --cov --cov-report=term:skip-covered
	$(call as-elsewhere,-q -m "not slow and not gpu" -n 2 $(NUMERICS))

test-all: lint types layers $(AXE)
	$(PIP) "flwr[simulation]" --editable ".[$(EXTRAS),ray]"
	$(BIN)/pytest -m "not gpu" -n 2 --hypothesis-profile=explore --cov --cov-report=term:skip-covered
	$(call as-elsewhere,-q -m "not gpu" -n 2)

test-pythons:
	$(PYTHON) tests/release/pythons.py

# axe-core checks pages for people who use them differently; it is a tool of the tests and ships with nothing.
AXE := node_modules/axe-core/axe.min.js
$(AXE):
	npm install --silent --no-save --no-package-lock --no-audit --no-fund axe-core@4.10.3

shots: $(STAMP) $(AXE)
	$(BIN)/python tests/shots.py shots

bench: $(STAMP)
	$(PIP) byzfl flwr
	$(BIN)/python benchmarks/aggregation.py

clean:
	rm -rf $(VENV) .venv-pythons demo shots node_modules .pytest_cache .ruff_cache .coverage
