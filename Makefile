# Every target makes the environment it needs; nothing has to be installed first but Python 3.10 or newer and make.

PYTHON ?= python3
ARGS   ?=
EXTRAS ?= dev,test,compare,demo,bench

VENV  := .venv
BIN   := $(VENV)/bin
# pip needs many minutes to find versions that agree; uv needs seconds.
INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python
STAMP := $(VENV)/.installed
TEST_TIMEOUT := 120
# Processes that share the quick suite. One that is done takes over what another has left.
WORKERS ?= 2

# A stamp is worth nothing if its environment was made for another place, or its Python has gone since.
ifneq ($(shell cat $(STAMP) 2>/dev/null && $(BIN)/python -c '' 2>/dev/null && echo sound),$(CURDIR) $(EXTRAS) sound)
$(shell rm -f $(STAMP))
endif

# Without bytecode each test process, and each process that a test starts, compiles all it imports: this doubled the time
# of the suite in environments that set the variable.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

.PHONY: env
env: $(STAMP) ## make .venv with everything the other targets need

# Without a stamp the environment may be half made, so it is made anew. With an old one (pyproject.toml has changed) it
# is brought up to date in place; the stamp goes first, so that a run cut short is seen by the next.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed; name it by PYTHON=")'
	@test -f $@ || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(INSTALL) --editable '.[$(EXTRAS)]'
	@printf '%s %s\n' '$(CURDIR)' '$(EXTRAS)' > $@

.PHONY: test
test: $(STAMP) ## the quick suite: one process, no server, no model
	$(BIN)/python -m pytest --timeout=$(TEST_TIMEOUT) -n $(WORKERS) --dist worksteal $(ARGS)

.PHONY: test-process
test-process: $(STAMP) ## the tests that start other processes, servers and browsers, and those that take long
	$(BIN)/python -m pytest --timeout=$(TEST_TIMEOUT) -n $(WORKERS) --dist worksteal \
	  -m '(process or long) and not stack and not slow and not demo and not bench' $(ARGS)

.PHONY: check
check: $(STAMP) ## ruff, mypy (strict) and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy otel_lifecycle tests examples docs
	$(BIN)/lint-imports

.PHONY: format
format: $(STAMP) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: demo
demo: $(STAMP) ## serve a real model, load it, and show where each request spent its time
	$(BIN)/python -m examples.demo $(ARGS)

.PHONY: test-demo
test-demo: $(STAMP) ## the tests that serve the real model
	$(BIN)/python -m pytest -m demo --timeout=600 $(ARGS)

# The engines that take long to install: llama-cpp-python compiles for some six minutes, once.
ENGINES := $(VENV)/.engines
$(ENGINES): $(STAMP)
	$(INSTALL) --editable '.[litserve,llama-cpp-python]'
	@touch $@

.PHONY: test-slow
test-slow: $(ENGINES) ## soaks, faults, big inputs, the engines, and four times the examples of each property
	$(BIN)/python -m pytest -m slow --timeout=1800 $(ARGS)
	$(BIN)/python -m pytest -m 'hypothesis and not stack and not slow and not demo and not bench' --timeout=900 \
	  --hypothesis-profile=thorough -n $(WORKERS) --dist worksteal $(ARGS) || [ $$? = 5 ]

ENGINE ?= openvino
.PHONY: test-engines
test-engines: $(STAMP) ## a drop-in on its real engine: ENGINE=openvino, ollama, vllm, sglang or transformers
	$(BIN)/python -m tests.engines $(ENGINE) $(ARGS)

.PHONY: bench
bench: $(STAMP) ## what a request and a token cost
	$(BIN)/python -m tests.benchmarks $(ARGS)

DOCS := $(VENV)/.docs
$(DOCS): $(STAMP)
	$(INSTALL) --editable '.[docs]'
	@touch $@

.PHONY: docs
docs: $(DOCS) ## build the documentation site into site/
	$(BIN)/python -m docs.generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

.PHONY: screenshots
screenshots: $(STAMP) ## make docs/pictures/ from real runs of the demo (needs chromium and `make stack`)
	$(BIN)/python -m docs.screenshots

.PHONY: release-check
release-check: $(STAMP) ## build wheel and sdist, check them, and try each in a fresh environment
	rm -rf dist
	$(BIN)/python -m build --outdir dist . >/dev/null
	$(INSTALL) twine
	$(BIN)/twine check --strict dist/*
	for one in dist/*.whl dist/*.tar.gz; do \
	  rm -rf build/release && $(PYTHON) -m venv build/release \
	  && build/release/bin/python -m pip install --quiet --disable-pip-version-check "$$one" \
	  && (cd build && OTEL_TRACES_EXPORTER=none OTEL_METRICS_EXPORTER=none release/bin/python ../examples/quickstart.py) \
	  || exit 1; \
	done

.PHONY: clean
clean: ## remove the environment and all that tools left
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

-include tests/stack/stack.mk
