# Everything starts here: `make help`. Needs make and a Python of 3.11 or newer; all else is installed into .venv.

VENV := .venv
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest --dist worksteal
export PYTHON VENV
# Bytecode is kept, whatever the shell says: tests start hundreds of processes, and each would compile everything.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup up check check-all test outside bench format errors picture clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install everything that development and all tests need
	@tools/environment dev
	@tools/environment ministack

up: ## start Postroad here (ARGS="--port 9000 --open" passes flags on)
	@tools/environment run
	@exec $(VENV)/bin/postroad up $(ARGS)

# Many of these tests wait for a lease or a thread rather than compute.
check: ## what a change must pass: format, lint, types, layers, unit tests, conformance on memory and SQLite
	@tools/environment dev
	@$(PYTEST) -n 4 -m "not slow and not aws and not postgres" $(ARGS)

check-all: ## the same under every Python from 3.11 on that is found, each in an environment of its own
	@tools/check-all

test: setup ## everything, emulated AWS and PostgreSQL included
	@$(PYTEST) -n auto $(ARGS)

outside: ## weakincentives' own tests of its bus, sessions and main loop, on our buses
	@tools/environment dev
	@$(PY) -m tests.outside

bench: ## measure beside the peers (ONLY=name for one row, QUICK=1 for a short run)
	@tools/environment dev
	@$(PY) -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick) $(ARGS)

format: ## repair what the formatter and the linter can repair
	@tools/environment dev
	@$(PY) -m ruff format . && $(PY) -m ruff check --fix .

errors: ## write docs/errors.md from the error classes
	@tools/environment dev
	@$(PY) tools/error_page.py

picture: ## draw docs/images/terminal.svg from a real run
	@tools/environment dev
	@$(PY) tools/terminal_picture.py

clean: ## remove what the other targets made: environments, caches, builds; never your data
	rm -rf .venv .venv-* .lock.venv* .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
