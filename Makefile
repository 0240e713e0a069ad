# Targets are documented by `make help`. Everything happens in VENV (.venv by default); nothing is installed elsewhere.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | awk -F '\t' '{printf "  %-17s %s\n", $$1, $$2}'

.PHONY: quickstart
quickstart: $(VENV)/.installed ## Set everything up, then lose a bookie and repair the cluster, in about two minutes
	$(BIN)/bkheal quickstart

.PHONY: demo
demo: $(VENV)/.installed ## A cluster with the auditor service, Spark UI tab and replicators, to try and to damage
	$(BIN)/bkheal demo

.PHONY: test
test: $(VENV)/.installed-dev ## Set everything up, then run every ring of tests once, side by side
	$(BIN)/python -m tests.rings gate

.PHONY: check
check: $(VENV)/.installed-dev ## Fast gate for each commit: lint and the unit tests, side by side
	@$(MAKE) --no-print-directory --jobs=2 lint unit

.PHONY: unit
unit: $(VENV)/.installed-dev
	$(BIN)/python -m tests.rings gate --only unit --lanes 2

.PHONY: test-long
test-long: $(VENV)/.installed-dev ## Run the suites that search, measure or build (SUITES="a b" runs some, see tests/rings/suites.toml)
	$(BIN)/python -m tests.rings long $(SUITES)

.PHONY: test-stress
test-stress: $(VENV)/.installed-dev ## Run the rings that start processes three times beside two busy loops
	$(BIN)/python -m tests.rings stress

.PHONY: lint
lint: $(VENV)/.installed-dev ## Check format, types, imports and spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell auditor bookie replicator spark_jobs tests docs helm *.md Makefile Dockerfile

SEEDS ?= 2000
.PHONY: simulate
simulate: $(VENV)/.installed-dev ## Run SEEDS=2000 histories of a simulated cluster under faults, on all cores
	$(BIN)/python -m tests.simulation run --seeds $(SEEDS)

.PHONY: simulate-defects
simulate-defects: $(VENV)/.installed-dev ## Plant each known defect in turn and look for it; writes docs/simulation-defects.md
	$(BIN)/python -m tests.simulation defects

MINUTES ?= 30
.PHONY: soak
soak: $(VENV)/.installed-dev ## Keep a bookie busy for MINUTES=30, with restarts; memory, file handles and disk must not grow
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

.PHONY: bench
bench: $(VENV)/.installed ## Run every benchmark; each prints ratios against a baseline of the same run
	$(BIN)/bkheal bench add
	$(BIN)/bkheal bench bookie
	$(BIN)/bkheal bench repair
	$(BIN)/bkheal bench scan
	$(BIN)/bkheal bench cluster

.PHONY: spark-matrix
spark-matrix: $(VENV)/.installed-dev ## Run the tests of the Spark UI tab with each supported PySpark (400 MB each, kept)
	$(BIN)/python .ci/spark_matrix.py

.PHONY: apache-releases
apache-releases: $(VENV)/.installed-dev ## Run the tests with Apache's programs with an older and a newer release of them (Maven, JDK)
	PYTHON=$(BIN)/python .ci/apache_releases

.PHONY: zookeeper-releases
zookeeper-releases: $(VENV)/.installed-dev ## Run the tests of the metadata store with older releases of ZooKeeper (Maven, JDK)
	PYTHON=$(BIN)/python .ci/zookeeper_releases

IMAGE_STORE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/bkheal/image
.PHONY: image-test
image-test: $(VENV)/.installed-dev ## Build the image without Docker, run the chart's pods from it (root, buildah, podman)
	.ci/build_image.sh $(IMAGE_STORE)
	BKHEAL_IMAGE_STORE=$(IMAGE_STORE) $(BIN)/python -m pytest -m long tests/chart/test_image_runs.py

.PHONY: docs
docs: $(VENV)/.installed-dev ## Generate docs/configuration.md, docs/metrics.md, the chart's schema, table of values and dashboards
	$(BIN)/python .ci/generate_configuration_doc.py
	$(BIN)/python .ci/generate_chart_schema.py
	$(BIN)/python .ci/generate_metrics_doc.py
	$(BIN)/python .ci/generate_dashboards.py
	$(BIN)/python -m tests.chart.values_table

.PHONY: site
site: $(VENV)/.installed-site ## Build all documents as a searchable site in build/site; a broken link is an error
	$(BIN)/python .ci/site/build.py

.PHONY: proto
proto: $(VENV)/.installed-dev ## Generate the protobuf code anew
	$(BIN)/python .ci/generate_protos.py

.PHONY: clean
clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "bkheal needs Python 3.11 or newer, found $$($(PYTHON) -V). Set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

PIP_OPTIONS ?=
PIP_INSTALL = $(BIN)/python -W ignore:DEPRECATION -m pip install --quiet $(PIP_OPTIONS) --constraint constraints.txt --editable

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing bkheal and its dependencies into $(VENV): about 600 MB, a few minutes the first time"
	$(PIP_INSTALL) '.[demo]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing bkheal and what its tests need into $(VENV): 1.5 GB on the disk, a few minutes the first time"
	$(PIP_INSTALL) '.[dev]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-site: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP_INSTALL) '.[site]'
	@touch $@
