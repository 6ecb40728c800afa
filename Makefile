# Start with `make help`. This needs make and Python 3.11 or newer; everything else is installed into .venv.

VENV := .venv
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest --dist worksteal
# More processes than cores, because many tests wait for a lease, a thread or a server; in `make test` some start servers.
CORES = $(shell getconf _NPROCESSORS_ONLN)
WORKERS = $(shell echo $$((2 * $(CORES))))
check: WORKERS = $(shell echo $$((3 * $(CORES))))
export PYTHON VENV
# Always keep bytecode: tests start hundreds of processes, and each would compile everything.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup .dev .ministack .chromium up check check-all test outside bench mutants soak proof format docs errors reference screenshots sbom audit lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install everything for development and all tests
	@$(MAKE) --no-print-directory --jobs=3 .dev .ministack .chromium

# The parts of the set-up, which take half as long beside each other.
.dev .ministack:
	@tools/environment $(@:.%=%)

.chromium:
	@tools/chromium

up: ## start Postroad here (ARGS="--demo --port 9000" passes options)
	@tools/environment run
	@exec $(VENV)/bin/postroad up $(ARGS)

check: ## run what every change must pass: format, lint, types, layers, unit tests, conformance
	@tools/environment dev
	@$(PYTEST) -n $(WORKERS) -m "not slow and not aws and not postgres" $(ARGS)

check-all: ## run the same under every installed Python from 3.11 on, each in its own environment
	@tools/check-all

test: setup ## run all tests, including those on emulated AWS and PostgreSQL
	@$(PYTEST) -n $(WORKERS) $(ARGS)

outside: ## run weakincentives' own tests of its bus, sessions and main loop on our buses
	@tools/environment dev
	@$(PY) -m tests.outside

bench: ## run the benchmarks against other libraries (ONLY=name for one row, QUICK=1 for a short run)
	@tools/environment dev
	@$(PY) -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick) $(ARGS)

mutants: ## let `postroad verify` find every deliberate bug (ARGS=NAME for one)
	@tools/environment dev
	@$(PY) -m postroad.testing.mutants $(ARGS)

soak: ## break running systems on purpose for a night (HOURS=8) and write proof/soak-<date>/report.md
	@tools/environment dev
	@tools/environment ministack
	@status=0; $(PY) -m postroad.testing.verify.soak $(HOURS) || status=1; \
		$(PYTEST) -n $(WORKERS) tests/faults/models --hypothesis-profile=soak || status=1; exit $$status

proof: ## write the figures of the newest soak into docs/proof.md
	@tools/environment dev
	@$(PY) tools/proof_page.py

format: ## fix what the formatter and the linter can fix
	@tools/environment dev
	@$(PY) -m ruff format . && $(PY) -m ruff check --fix .

errors: ## write docs/errors.md from the error classes
	@tools/environment dev
	@$(PY) tools/error_page.py

reference: errors ## write the pages of docs/reference from the commands, routes, settings and log names
	@$(PY) tools/reference_pages.py

docs: ## build the site of the documentation into build/site, offline
	@tools/environment dev
	@$(PY) tools/site.py

screenshots: ## photograph the dashboard of the demo into build/screenshots, in both themes and widths
	@tools/environment dev
	@tools/chromium
	@$(PY) tools/screenshots.py $(ARGS)

sbom: ## write build/sbom.json, the bill of materials of the runtime dependencies
	@tools/environment dev
	@$(PY) tools/supply.py sbom

audit: ## look the runtime dependencies up in the database of known vulnerabilities
	@tools/environment dev
	@$(PY) tools/supply.py audit

lock: ## write build/requirements.lock, the runtime dependencies with versions and hashes
	@tools/environment dev
	@$(PY) tools/supply.py lock

clean: ## remove environments, caches and builds, never your data
	rm -rf .venv .venv-* .lock.venv* .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
