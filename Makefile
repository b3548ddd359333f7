# Everything a newcomer does with Sluice. `make help` lists it.
# What make up, demo and test install goes into .venv; a stamp file each makes the next start quick.

VENV    := .venv
PY      := $(VENV)/bin/python
# The interpreter that makes the virtual environment: 3.11 if there is one, else a newer one.
PYTHON  ?= $(shell for p in python3.11 python3 python; do \
             $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
# Every file has a hash of the lock; source archives are built with what requirements-build.txt has installed.
PIP     := $(PY) -m pip --disable-pip-version-check --no-input install --quiet --require-hashes --no-build-isolation
# Extra words for a command: make demo ARGS='--rate 5000', make test-python ARGS='-k journal'.
ARGS    ?=
# make up GROUP=3; some shells have a variable of that name for other purposes.
ifneq ($(origin GROUP),command line)
GROUP   :=
endif

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help up demo test test-python test-browser test-postgres screenshots lint types imports format lock wheel sbom bench torture clean system-packages

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A group keeps its files apart: what a broker by itself has in its journal is in no group's log.
up: $(VENV)/up.stamp $(if $(GROUP),$(VENV)/group.stamp)  ## start all of Sluice on this machine; Ctrl-C stops it. GROUP=3: three brokers on one log
	@$(if $(GROUP),SLUICE_HOME=$${SLUICE_HOME:-var/group}) $(PY) manage.py up $(if $(GROUP),--group $(GROUP)) $(ARGS)

demo: $(VENV)/demo.stamp  ## the same, with a year of flights and four subscribers, one of them slow
	@$(PY) manage.py demo $(ARGS)

test: system-packages lint sbom test-python test-browser test-postgres  ## install what the tests need and run them all

# CI gives failed tests a second look (tests/support/rerun_failed.py).
PYTEST  ?= $(PY) -m pytest
# A file's tests stay in one worker, and each worker has a home of its own: database, Redis, sockets.
WORKERS := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# With ARGS a choice of tests may leave none for one of the runs, which pytest calls 5.
OR_NONE := $(if $(ARGS),|| test $$? -eq 5)

# STOMP clients in JavaScript, for their tests alone: a second, once. Nothing of it is shipped.
NODE := tests/clients/node
$(NODE)/node_modules/.stamp: $(NODE)/package-lock.json
	@cd $(NODE) && npm ci --no-audit --no-fund --silent && touch node_modules/.stamp

test-python: $(VENV)/dev.stamp $(if $(shell command -v npm),$(NODE)/node_modules/.stamp)
	$(PYTEST) --ignore tests/browser -m "not serial" $(WORKERS) --durations 20 --durations-min 10 $(ARGS) $(OR_NONE)
	$(PYTEST) --ignore tests/browser -m serial $(ARGS) $(OR_NONE)

# A run of its own: Playwright keeps an event loop running on the main thread, which no test after it could use.
test-browser: $(VENV)/dev.stamp
	$(PYTEST) tests/browser $(WORKERS) $(ARGS)

screenshots: $(VENV)/dev.stamp  ## every page at three widths in both themes, in var/screenshots
	@$(PY) -m tests.support.screenshots $(ARGS)

test-postgres: $(VENV)/dev.stamp  # what touches the database once more, on a PostgreSQL that lives for this run only
	$(PY) tests/support/postgres.py -- $(PYTEST) tests/console tests/api --database $(WORKERS) $(ARGS)

lint: $(VENV)/dev.stamp types imports  ## all checks of the code: ruff, layout, types, imports, and licences of what it needs
	$(PY) packaging/licences.py
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/dev.stamp  ## mypy --strict of the engine, the data source, the pipeline, the control plane and the benchmarks
	$(VENV)/bin/mypy --strict broker_core pipeline sluice_spark console api
	$(VENV)/bin/mypy --strict --follow-imports=silent --ignore-missing-imports bench

imports: $(VENV)/dev.stamp  ## the packages point one way
	$(VENV)/bin/lint-imports

format: $(VENV)/dev.stamp  ## lay out the code, 110 columns
	$(VENV)/bin/ruff format .

# Each is compiled with those before it as constraints. What is locked stays unless it has to move: ARGS=--upgrade moves all of it.
LOCKS := requirements-build requirements requirements-oidc requirements-group requirements-demo requirements-dev
lock: $(VENV)/dev.stamp  ## make requirements*.txt of requirements*.in: all that they bring, with hashes; ARGS='--upgrade'
	@set -e; for name in $(LOCKS); do \
	  $(VENV)/bin/uv --quiet pip compile --universal --python-version 3.11 --generate-hashes \
	    --custom-compile-command 'make lock' $(ARGS) $$name.in --output-file $$name.txt >/dev/null; done

wheel: $(VENV)/dev.stamp  ## make the wheel of sluice-spark, the Spark data source, in dist/
	$(PY) packaging/spark_wheel.py

sbom: $(VENV)/dev.stamp  ## what Sluice consists of, with licences, as CycloneDX, in dist/
	$(PY) packaging/sbom.py

bench: $(VENV)/dev.stamp  ## measure; figures of record are in docs/benchmarks.md
	$(PY) -m bench $(ARGS)

torture: $(VENV)/dev.stamp  ## kill brokers, cut their power, break their disks for an hour: ARGS='--minutes 10 --seed 7'
	$(PY) -m tests.torture $(ARGS)

clean:  ## remove the virtual environment and caches; data in var/ stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

system-packages: $(VENV)/bin/python
	@$(PY) tests/support/system_packages.py

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Sluice needs Python 3.11 or newer; none is on the PATH."; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "No virtual environment could be made. On Debian: apt-get install python3-venv"; exit 1; }

$(VENV)/up.stamp: requirements-build.txt requirements.txt | $(VENV)/bin/python
	@echo "Installing requirements.txt (once; some minutes)"
	@$(PIP) -r requirements-build.txt
	@$(PIP) -r requirements.txt
	@touch $@

$(VENV)/demo.stamp: requirements-demo.txt $(VENV)/up.stamp
	@$(PIP) -r requirements-demo.txt
	@touch $@

$(VENV)/group.stamp: requirements-group.txt $(VENV)/up.stamp
	@$(PIP) -r requirements-group.txt
	@touch $@

$(VENV)/dev.stamp: requirements-dev.txt requirements-demo.txt requirements-oidc.txt requirements-group.txt $(VENV)/up.stamp
	@echo "Installing what the tests need"
	@$(PIP) -r requirements-dev.txt -r requirements-demo.txt -r requirements-oidc.txt -r requirements-group.txt
	@touch $@
