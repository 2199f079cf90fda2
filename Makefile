PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.PHONY: install test reproduce

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto

reproduce: install
	$(BIN)/scaleconv reproduce table1 --preset quick
