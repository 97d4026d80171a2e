# One verb per chore, the same for people and for the build server. Needs Python >= 3.11, make and a POSIX shell.
# Every verb creates .venv if it is missing or older than pyproject.toml.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SERVE_STAMP := $(VENV)/.installed-serve
MADE := $(VENV)/.made-by-make
LOG := $(VENV)/install.log

# Without bytecode on disk, every new process compiles all modules again.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help install demo serve test drills kernels check bench docs dist release clean

help:  ## print this list
	@echo "make VERB, where VERB is one of:"
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "options: PYTHON=python3.12 (the Python of $(VENV)), ARGS='...' (arguments of demo, serve, test, bench, release)"

install: $(STAMP)  ## create .venv with xcray (editable) and everything needed to run and test it

demo: $(STAMP)  ## build a data set, train it on Ray through REST, ask five questions, clean up (minutes)
	@$(BIN)/xcray demo $(ARGS)

# The kernels of a first training are compiled while the user opens the console and chooses a file.
serve: $(if $(wildcard $(STAMP)),$(STAMP),$(SERVE_STAMP))  ## the service on 127.0.0.1 until Ctrl-C; the address is printed
	@nice -n 10 $(BIN)/xcray compile-kernels --only training > /dev/null 2>&1 & exec $(BIN)/xcray serve $(ARGS)

test: $(STAMP)  ## check, then the tests in parallel, without the drills (up to ten minutes)
	@$(MAKE) --no-print-directory -j2 check kernels
	@$(BIN)/python -m pytest -m "not drill" --numprocesses auto --maxprocesses 4 --dist loadfile $(ARGS)

drills: $(STAMP)  ## the long tests: faults, upgrades, several Ray nodes, pods, notebooks (up to 20 minutes)
	@$(BIN)/python -m pytest -m drill --numprocesses auto --maxprocesses 3 --dist loadfile $(ARGS)

kernels: $(STAMP)  ## compile all kernels now, not each one when it is first used
	@$(BIN)/xcray compile-kernels > /dev/null

check: $(STAMP)  ## style (ruff) and types (mypy, strict)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy

bench: $(STAMP)  ## the quick benchmarks
	@$(BIN)/python -m benchmarks --quick $(ARGS)

docs: $(STAMP)  ## the documentation site with search, in build/docs; fails on a dead link
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "to read it: open build/docs/index.html"

dist: $(STAMP)  ## source distribution and wheel, checked, in build/dist
	@rm -rf build/dist
	@$(BIN)/python -m build --outdir build/dist . > $(VENV)/build.log 2>&1 || { tail -n 30 $(VENV)/build.log >&2; exit 1; }
	@$(BIN)/python -m twine check --strict build/dist/*

release: dist  ## what dist makes, installed and tried with each Python on the PATH; SBOM and licences in build
	@$(BIN)/python -m tests.deployment.release $(ARGS)

clean:  ## remove .venv, build and caches
	@if [ -e $(MADE) ]; then rm -rf $(VENV); else rm -f $(STAMP) $(SERVE_STAMP) $(LOG); fi
	@rm -rf build xcray.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find xcray tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +

# The service alone needs a quarter of the packages' installation time; `make install` adds the rest.
# Bytecode is written when a module is first imported: compiling all of it would double the time.
$(STAMP): EXTRA := dev
$(SERVE_STAMP): EXTRA := serve
$(STAMP) $(SERVE_STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "xcray needs Python 3.11 or newer, but $(PYTHON) is: $$($(PYTHON) --version 2>&1)" >&2; \
	  echo "name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "making $(VENV) with $$($(PYTHON) --version 2>&1)"; \
	  $(PYTHON) -m venv --clear $(VENV) && touch $(MADE); }
	@echo "installing xcray and what it needs into $(VENV): up to three minutes, once (log: $(LOG))"
	@$(BIN)/python -m pip install --disable-pip-version-check --no-input --progress-bar off --no-compile --editable '.[$(EXTRA)]' > $(LOG) 2>&1 || { \
	  tail -n 30 $(LOG) >&2; echo "the installation failed; the whole log is $(LOG)" >&2; exit 1; }
	@echo "installed; $(BIN)/xcray --help shows what it can do"
	@touch $@
