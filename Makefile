# Every target makes the environment it needs: .venv, once, and again when pyproject.toml or
# constraints.txt change. Only make and Python 3.11 or newer have to be there.
#
#   make run ARGS="--max-new-tokens 64"     pass options on (run, test, bench)
#   make run PYTHON=python3.12              choose the Python that .venv is made with

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test cover check lint types imports bench format clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):[^#]*## /  make \1 @/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS=@ read -r name what; do printf '%-16s %s\n' "$$name" "$$what"; done

run: $(READY) ## one prompt answered twice, plainly and drafted: same text, less time
	$(BIN)/outdraft demo $(ARGS)

test: $(READY) ## all tests, on all cores
	$(BIN)/python -m pytest -n auto $(ARGS)

cover: $(READY) ## all tests, and which lines and branches they ran
	$(BIN)/python -m pytest -n auto --cov --cov-report=term $(ARGS)

check: lint types imports test ## lint + types + imports + test: what has to pass

lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## mypy --strict on src
	$(BIN)/mypy

imports: $(READY) ## import-linter: imports point down only
	$(BIN)/lint-imports --no-logo

bench: $(READY) ## measure speed against plain decoding on this machine
	$(BIN)/outdraft bench $(ARGS)

format: $(READY) ## let ruff format the code and fix what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove .venv, caches and build outputs (fetched models stay)
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .pytest_cache .mypy_cache \
		.ruff_cache .import_linter_cache .hypothesis src/outdraft.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that a stopped install left behind, or whose Python has gone, is made anew.
$(READY): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		version=$$($(PYTHON) -V 2>&1) || { \
			echo "outdraft needs Python 3.11 or newer, and there is no '$(PYTHON)' here." \
				"Install one, or name it: make PYTHON=python3.12 ..." >&2; exit 1; }; \
		$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
			echo "outdraft needs Python 3.11 or newer; '$(PYTHON)' is $$version." \
				"Name a newer one: make PYTHON=python3.12 ..." >&2; exit 1; }; \
		echo "Making $(VENV) with $$version, once; this takes a few minutes."; \
		$(PYTHON) -m venv --clear $(VENV); \
	fi
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
