# Two commands on a fresh machine with Python 3.11 to 3.13, git and make:
#   make demo   sets up and runs the main job
#   make test   sets up, checks lint and types, and runs the tests
# Everything is kept inside the checkout: .venv* and .cache.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NEWEST := .venv-newest
NEWEST_GYMNASIUM := 1.4.0
# Other versions of Python that are declared, as far as this machine has them.
OTHERS := 3.12 3.13
find_python = $(firstword $(wildcard $(shell pyenv root 2>/dev/null)/versions/$(1).*/bin/python$(1)) \
	$(shell command -v python$(1) 2>/dev/null))
# Nothing outside the checkout: caches of pip, matplotlib and friends live here.
export XDG_CACHE_HOME := $(CURDIR)/.cache
export MPLCONFIGDIR := $(CURDIR)/.cache/matplotlib
export PIP_NO_CACHE_DIR := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP_INSTALL := -m pip install --quiet --progress-bar off -c constraints.txt
# Tests run in as many processes as there are cores; each of them uses one thread. Work is stolen
# from the end of a neighbour's share, so that fixtures of a file are rarely made twice.
WORKERS ?= auto
PYTEST_OPTIONS := -n $(WORKERS) --dist worksteal

.PHONY: help setup demo newcomer test test-slow test-nightly test-many test-processors test-pythons test-oldest check check-forge release-check licences bench bench-compare bench-table docs house notebooks clean

help:
	@echo "make demo       set up, and the whole chain on a gridworld: train, certify, verify, learn, report"
	@echo "make test       set up, check lint and types, run the tests"
	@echo "make test-slow  agents, browser, Ray, wheel, other-version tests and the site (needs Chromium)"
	@echo "make test-nightly  campaigns and scripts that take minutes each, once a night"
	@echo "make test-many  tests of drawn models with all their seeds and many examples"
	@echo "make test-processors  certificates and tests as on other processors"
	@echo "make test-pythons  what may differ, on the other versions of Python that are installed"
	@echo "make test-oldest   the core with the oldest versions that pyproject.toml allows"
	@echo "make release-check build, install elsewhere, run the README there"
	@echo "make newcomer   what a newcomer waits for, in a fresh clone with nothing compiled"
	@echo "make bench      benchmarks against POT, SciPy and stormpy, kept in benchmarks/"
	@echo "make bench-compare  two kept runs side by side, and what moved (A=... B=...)"
	@echo "make bench-table    the site's tables from benchmarks/baseline.json"
	@echo "make docs       the documentation as a site, in site/"
	@echo "make house      draw the rooms of the package anew, in docs/images"
	@echo "make licences   list the licences of all dependencies anew, in docs"
	@echo "make notebooks  execute the notebooks anew, in place"
	@echo "make clean      remove everything that was built"

setup: $(VENV)/.core

$(VENV)/.core: pyproject.toml constraints.txt
	@echo "setting up $(VENV), once"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "  1/2 PyTorch (about 200 MB for the CPU; PyPI's builds for Linux bring gigabytes)"
	@$(BIN)/python $(PIP_INSTALL) torch
	@echo "  2/2 bisim-abstract and what it needs"
	@$(BIN)/python $(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "adding test tools to $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) -e '.[dev]'
	@touch $@

# The newest Gymnasium, in which ids and tables differ; the encoders are not needed there.
$(NEWEST)/.dev: pyproject.toml constraints.txt
	@echo "setting up $(NEWEST) with Gymnasium $(NEWEST_GYMNASIUM), once"
	@test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	@sed 's/^gymnasium==.*/gymnasium==$(NEWEST_GYMNASIUM)/' constraints.txt > $(NEWEST)/constraints.txt
	@$(NEWEST)/bin/python -m pip install --quiet --progress-bar off -c $(NEWEST)/constraints.txt \
		faiss-cpu gymnasium minigrid numba numpy scipy rich hypothesis pytest pytest-xdist
	@$(NEWEST)/bin/python -m pip install --quiet --progress-bar off --no-deps -e .
	@touch $@

$(VENV)/.bench: $(VENV)/.core
	@echo "adding benchmark peers to $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) -e '.[bench]'
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	@echo "adding the site's tools to $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) -e '.[docs]'
	@touch $@

# Solvers are compiled before anybody waits for them, in as many processes as there are cores.
KERNELS := $(wildcard bisim_abstract/_kernels/*.py) bisim_abstract/_verify/kernels.py \
	bisim_abstract/_verify/points.py \
	bisim_abstract/_base/jit.py bisim_abstract/_base/rounding.py
$(VENV)/.compiled: $(VENV)/.core $(KERNELS)
	@$(BIN)/bisim-abstract compile
	@touch $@

demo: $(VENV)/.compiled
	@$(BIN)/python scripts/demo.py

check: $(VENV)/.dev check-forge
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What GitHub and others read, against schemas that check-jsonschema brings along.
SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema
FORMS := $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
check-forge: $(VENV)/.dev
	$(SCHEMA) vendor.github-workflows .github/workflows/*.yml
	$(SCHEMA) custom.github-workflows-require-timeout .github/workflows/*.yml
	$(SCHEMA) vendor.github-issue-forms $(FORMS)
	$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA) vendor.dependabot .github/dependabot.yml
	$(SCHEMA) vendor.citation-file-format CITATION.cff
	$(BIN)/pre-commit validate-config

test: check $(VENV)/.compiled
	$(BIN)/pytest $(PYTEST_OPTIONS) -m "not slow"

# Real agents, a cluster and peers, for the slow tests; JAX for Gymnasium's functional environments.
$(VENV)/.slow: $(VENV)/.dev
	@echo "adding agents, Ray, JAX and benchmark peers to $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) -e '.[agents,ray,bench]' jax flax
	@touch $@

test-slow: docs $(VENV)/.slow $(NEWEST)/.dev $(VENV)/.compiled
	$(BIN)/pytest $(PYTEST_OPTIONS) -m "slow and not nightly"
	$(NEWEST)/bin/pytest $(PYTEST_OPTIONS) -m "not slow" tests/wrappers

# What takes minutes each and is rarely broken by a change: campaigns, training, scripts.
test-nightly: $(VENV)/.slow $(VENV)/.compiled
	$(BIN)/pytest $(PYTEST_OPTIONS) -m nightly

# All seeds and many examples of every law that is tested by drawn models; half an hour or more.
test-many: $(VENV)/.slow $(VENV)/.compiled
	HYPOTHESIS_PROFILE=many $(BIN)/pytest $(PYTEST_OPTIONS) -m "hypothesis or drawn"

# What may differ between versions of Python: kernels and how they compile, rounding, files, one
# way from a model to a certificate and its verdict, and environments. None of it needs PyTorch.
PYTHONS_TESTS := tests/kernels tests/wrappers tests/base/test_parallel.py \
	tests/certificate/test_certificate.py tests/certificate/test_files.py \
	tests/exact/test_metric.py tests/exact/test_transport.py tests/linkage \
	tests/model/test_files.py tests/model/test_mdp.py tests/model/test_names.py \
	tests/prove/test_pipeline.py tests/prove/test_relations.py \
	tests/verify/test_honest.py tests/verify/test_verify.py

# The libraries take the code of other processors: digests of certificates, and what could differ.
test-processors: $(VENV)/.dev $(VENV)/.compiled
	$(BIN)/python scripts/processors.py --tests

# What does not need PyTorch, of which only one build is small.
CORE := exact linkage bounds certificate prove verify wrappers
CORE_TESTS := $(CORE:%=tests/%) $(filter-out %/test_estimation.py %/test_frames.py %/test_graphs.py %/test_storm.py,$(wildcard tests/model/test_*.py))
.PRECIOUS: .venv-%/.dev
.venv-%/.dev: pyproject.toml constraints.txt
	@echo "setting up .venv-$* for Python $*, once"
	@test -x .venv-$*/bin/python || $(call find_python,$*) -m venv .venv-$*
	@.venv-$*/bin/python $(PIP_INSTALL) \
		faiss-cpu gymnasium minigrid numba numpy scipy rich matplotlib hypothesis pytest pytest-xdist
	@.venv-$*/bin/python -m pip install --quiet --progress-bar off --no-deps -e .
	@touch $@

test-pythons: $(foreach v,$(OTHERS),$(if $(call find_python,$(v)),test-python-$(v),no-python-$(v)))

test-python-%: .venv-%/.dev
	@.venv-$*/bin/python -m bisim_abstract compile --quiet
	.venv-$*/bin/pytest $(PYTEST_OPTIONS) -m "not slow" $(PYTHONS_TESTS)

no-python-%:
	@echo "Python $* is not installed here: nothing was tested with it"

# The oldest versions of what does not need PyTorch. They warn of one another, not of us.
OLDEST := .venv-oldest
OLDEST_PYTHON := $(call find_python,3.11)
$(OLDEST)/.dev: pyproject.toml scripts/oldest.py
	@echo "setting up $(OLDEST) for Python 3.11, once"
	@test -x $(OLDEST)/bin/python || $(OLDEST_PYTHON) -m venv $(OLDEST)
	@$(OLDEST)/bin/python scripts/oldest.py > $(OLDEST)/constraints.txt
	@$(OLDEST)/bin/python -m pip install --quiet --progress-bar off -c $(OLDEST)/constraints.txt \
		faiss-cpu gymnasium minigrid numba numpy scipy rich matplotlib networkx pandas \
		hypothesis pytest pytest-xdist
	@$(OLDEST)/bin/python -m pip install --quiet --progress-bar off --no-deps -e .
	@touch $@

test-oldest: $(OLDEST)/.dev
	$(OLDEST)/bin/pytest $(PYTEST_OPTIONS) -m "not slow" -W ignore::DeprecationWarning \
		$(CORE_TESTS) tests/model/test_frames.py tests/model/test_graphs.py

# Builds what is committed; what it built is left in dist/. A release gives its TAG.
release-check: $(VENV)/.dev
	@$(BIN)/python scripts/release_check.py --keep dist $(if $(TAG),--tag $(TAG))

licences: $(VENV)/.slow $(VENV)/.docs
	$(BIN)/python scripts/licences.py --write

newcomer: $(VENV)/.core
	@$(BIN)/python scripts/newcomer.py --clone --demo

# Strict: a link, an anchor or a docstring that does not resolve is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

house: $(VENV)/.core
	$(BIN)/python scripts/house.py

notebooks: $(VENV)/.dev $(VENV)/.compiled
	$(BIN)/python scripts/notebooks.py

# Kept by date and commit, in benchmarks/; `mv` one to benchmarks/baseline.json to commit it.
bench: $(VENV)/.bench $(VENV)/.compiled
	$(BIN)/python scripts/bench.py --out benchmarks

# Two kept runs: make bench-compare A=benchmarks/baseline.json B=benchmarks/...json
bench-compare: $(VENV)/.core
	@$(BIN)/python scripts/bench_compare.py $(A) $(B)

# The site's tables, from the kept baseline.
bench-table: $(VENV)/.core
	$(BIN)/python scripts/bench_table.py

clean:
	rm -rf .venv* .cache build dist site *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
