# make demo            see tasks travel, on embedded servers
# make test            the tests, on embedded servers
# make check           linters, formatter, types, direction of imports
# make test-faults     the tests of faults that need more servers than two, or take long
# make test-servers    the tests that need servers, on the oldest that we support
# make test-containers the tests that need servers, on Docker containers
# make bench           the measurements
# make chaos           ten minutes of faults under load
# make format          let ruff rewrite the code
#
# The tests run four at a time, since many of them wait for a process or for a date.
#
# Everything runs in .venv, which is made at the first call and follows pyproject.toml.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check test-faults test-servers test-containers bench chaos format

demo: .venv/standard.stamp
	$(BIN)/postroad demo $(ARGS)

test: .venv/dev.stamp
	$(BIN)/pytest -n 4 $(ARGS)

check: .venv/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

test-faults: .venv/dev.stamp
	$(BIN)/pytest -n 2 -m faults $(ARGS)

test-servers: .venv/dev.stamp
	tests/servers/with-oldest.sh $(BIN)/pytest -n 2 -m "integration or acceptance" $(ARGS)

test-containers: .venv/dev.stamp
	PATH="$(CURDIR)/$(BIN):$$PATH" tests/containers/with-engine.sh tests/containers/with-images.sh \
		pytest --servers=testcontainers -m "integration or containers" $(ARGS)

bench: .venv/dev.stamp
	$(BIN)/python -m bench $(ARGS)

chaos: .venv/dev.stamp
	$(BIN)/python -m bench chaos $(ARGS)

format: .venv/dev.stamp
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.venv/standard.stamp: pyproject.toml | .venv/pip.stamp
	$(BIN)/pip install --quiet --editable ".[standard]"
	touch $@

.venv/dev.stamp: pyproject.toml | .venv/pip.stamp
	$(BIN)/pip install --quiet --editable ".[standard]" --group dev
	touch .venv/standard.stamp $@

# Dependency groups came with pip 25.1.
.venv/pip.stamp:
	@$(PYTHON) -c 'import sys; sys.exit("postroad needs Python 3.11: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	touch $@
