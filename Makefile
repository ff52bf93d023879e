# make serve: environment, install, a running server with a think budget and the demo model.
# make check: environment, install, lint, types, the tests that need no server.
# make test:  the same, then the tests on running servers.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
BUDGET ?= 128
ARGS ?=
TYPED := sglang_ext/compat sglang_ext/config.py sglang_ext/cli.py sglang_ext/vocab.py sglang_ext/budget sglang_ext/uag

# pip would compile all that it installs, which takes a minute; what is used is compiled when it is first imported.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -q --no-compile
export PYTHONDONTWRITEBYTECODE :=

# Three workers on two cores: each waits for its servers a third of the time.
PYTEST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder

.PHONY: serve check test lint types clean

serve: $(VENV)/.serve
	exec $(BIN)/python launch.py --think-budget $(BUDGET) $(ARGS)

check: lint types
	$(PYTEST) -m "not served" $(ARGS)

test: lint types
	$(PYTEST) $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .

types: $(VENV)/.test
	$(BIN)/mypy $(TYPED)

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; name another with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: pyproject.toml | $(BIN)/python
	@echo "Installing sglang and sglang-ext into $(VENV): about 11 GB, some minutes."
	$(PIP_INSTALL) -e '.[demo,bench]'
	touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	@echo "Installing sglang, sglang-ext and what the tests need into $(VENV): about 11 GB, some minutes."
	$(PIP_INSTALL) -e '.[demo,bench,test]'
	touch $(VENV)/.serve $@

clean:
	rm -rf $(VENV)
