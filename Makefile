# Each target builds .venv when it is missing or older than what it was built from.
# Needs make and Python 3.11 or newer; uses uv where there is one.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PROPERTIES = $(shell grep -l hypothesis tests/unit/test_*.py tests/live/test_*.py)
SBOM_TOOLS := 'cyclonedx-bom>=7,<8' 'pip-licenses>=5,<6'
FAST_TESTS := $(wildcard tests/repository tests/unit tests/live tests/scenarios tests/simulation)

# One virtual environment, one terminal: nothing here gains from -j.
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help venv run test thorough simulate mutants peers screenshots check bench house docs site package sbom image clean

help:
	@echo 'make run      start everything on this machine with a demo: PostgreSQL, Valkey, workers, beats, Flower'
	@echo 'make test     all tests, real processes and servers included (about eleven minutes)'
	@echo 'make thorough the properties of the fast tests with ten times as many examples'
	@echo 'make simulate 500 seeds of faults on fleets of workers; SEED=7 replays one, SECONDS=300 makes it longer'
	@echo 'make mutants  break the code in a hundred places, one at a time, and see that tests notice'
	@echo 'make peers    the tests against servers of other projects, which have to be installed: see tests/peers'
	@echo 'make screenshots  pictures of the pages for the docs, and of all others into build/screenshots; needs Chromium'
	@echo 'make check    format, lint, types, import levels and the fast tests'
	@echo 'make bench    measure throughput, memory and start-up here; ARGS="--help" says more'
	@echo 'make house    how large the code is, room by room, and which names in it stand twice'
	@echo 'make docs     write the generated tables of docs/reference anew'
	@echo 'make site     build the documentation as a web site into build/site, and check its links'
	@echo 'make package  build the sdist and the wheel into dist, and check them'
	@echo 'make sbom     what a feedq without extras is made of, and its licences, into dist (CycloneDX and Markdown)'
	@echo 'make image    build the image; needs a Docker engine'
	@echo 'make venv     only build .venv'
	@echo 'make clean    delete .venv, caches and build products'
	@echo
	@echo 'PYTHON=python3.12 chooses the interpreter.'

venv: $(INSTALLED)

# exec: Ctrl-C reaches feedq itself, once, and its exit status is the target's.
run: $(INSTALLED)
	@exec $(RUN)/feedq up --demo $(ARGS)

test: $(INSTALLED)
	@exec $(RUN)/python -m tests.parts $(ARGS)

thorough: $(INSTALLED)
	@$(RUN)/python -m pytest -q --hypothesis-profile=thorough $(PROPERTIES) $(ARGS)

simulate: $(INSTALLED)
	@exec $(RUN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

mutants: $(INSTALLED)
	@exec $(RUN)/python -m tests.mutants $(ARGS)

peers: $(INSTALLED)
	@$(RUN)/python -m pytest -q --durations=5 tests/peers $(ARGS)

check: $(INSTALLED)
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy
	$(RUN)/lint-imports
	$(RUN)/python -m pytest -q $(FAST_TESTS)

# Of every page, on a desk and on a phone, light and dark; the docs show some of them.
screenshots: $(INSTALLED)
	@FEEDQ_SCREENSHOTS=build/screenshots $(RUN)/python -m pytest -q tests/peers/test_pages.py -k accessible
	@for page in problems feeds feed fleet schedules; do \
	  cp build/screenshots/$$page-1300-light.png docs/images/$$page.png; done

bench: $(INSTALLED)
	@exec $(RUN)/python -m bench $(ARGS)

house: $(INSTALLED)
	@exec $(RUN)/python -m tests.house

docs: $(INSTALLED)
	@$(RUN)/python docs/reference/generate.py

site: $(INSTALLED)
	@NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict

package: $(INSTALLED)
	@$(RUN)/python -m build --no-isolation --outdir dist .
	@$(RUN)/twine check --strict dist/feedq-*

# The tools stay out of .venv, and feedq's dependencies have an environment without anything else.
sbom:
	@mkdir -p dist
	@$(PYTHON) -m venv --clear build/sbom/tools
	@$(PYTHON) -m venv --clear --without-pip build/sbom/feedq
	@build/sbom/tools/bin/pip install --quiet $(SBOM_TOOLS)
	@build/sbom/tools/bin/pip --python build/sbom/feedq/bin/python install --quiet -c constraints.txt .
	@build/sbom/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-file dist/feedq.cdx.json \
	  build/sbom/feedq/bin/python
	@build/sbom/tools/bin/pip-licenses --python build/sbom/feedq/bin/python --format markdown --with-urls \
	  --output-file dist/licences.md

image:
	docker build --tag feedq .
	docker run --rm feedq feedq --version

# What `feedq up` keeps in .feedq is data, not a build product: it stays.
clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find feedq tests bench docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The stamp comes last, so that a build that was interrupted is done again. Not compiled: of what is here most is not
# imported, and that takes a third of the time.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "feedq needs Python 3.11 or newer, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)" >&2; \
	  echo "Name another one, for example: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo 'Building $(VENV) ...'
	@if command -v uv >/dev/null 2>&1; then \
	  { $(RUN)/python -c '' 2>/dev/null || uv venv --quiet --allow-existing --python '$(PYTHON)' $(VENV); } && \
	  uv pip install --quiet --python $(RUN)/python -c constraints.txt -e '.[dev]'; \
	else \
	  { $(RUN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV); } && \
	  $(RUN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[dev]'; \
	fi
	@touch $@
