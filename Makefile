# Every target sets up what it needs in .venv; the stamp files make the second call quick.
PYTHON ?= python3
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
VENV := .venv
BIN := $(VENV)/bin

PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --durations=20

.PHONY: help setup demo test test-all test-hosts coverage lint docs bench clean
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.stamp-project ## the virtual environment in .venv

demo: setup ## one prompt set in full, cached and with fewer steps; writes out/demo/report.html
	OMP_NUM_THREADS=1 $(BIN)/python -m reference demo $(DEMO)

test: setup ## the tests of a few minutes, on all cores with one thread each (TEST="-k name" narrows it)
	$(PYTEST) -m "not slow and not sweep" $(TEST)

test-all: setup ## all tests, the slow ones and the whole sweeps too
	$(PYTEST) $(TEST)

test-hosts: ## reuse inside the engines: builds an environment for each (2 GB a piece) and runs the tests in it
	scripts/vllm_venv.sh
	scripts/vllm_omni_venv.sh
	scripts/sglang_venv.sh
	scripts/comfyui_venv.sh
	scripts/ray_serve_venv.sh

coverage: setup ## all tests with branch coverage, which takes longer
	$(PYTEST) --cov --cov-report=term $(TEST)

lint: setup ## ruff check, ruff format, codespell, import-linter, mypy --strict
	$(BIN)/ruff check .
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs src lab engines reference bench scripts examples integrations
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy --strict src lab/src engines/src reference

docs: setup $(VENV)/.stamp-docs ## the site in out/site, warnings are errors; runs the notebooks
	PYTHONPATH=. OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mkdocs build --strict

bench: setup ## the committed benchmarks under bench/
	$(BIN)/python -m bench $(BENCH)

clean: ## drop the environment and everything generated
	rm -rf $(VENV) .ci/venv-* out dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage

# torch goes first and alone: pip then takes the build that this machine's own configuration prefers (a CPU wheel where
# one is set up) and everything after it finds torch already there.
$(VENV)/.stamp-torch: constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the pinned environment needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	touch $@

$(VENV)/.stamp-project: $(VENV)/.stamp-torch pyproject.toml lab/pyproject.toml engines/pyproject.toml
	$(BIN)/pip install --quiet -c constraints.txt -e '.[metrics,redis,cache-dit]' -e lab -e ./engines --group dev
	touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-project
	$(BIN)/pip install --quiet -c constraints.txt --group docs
	touch $@
