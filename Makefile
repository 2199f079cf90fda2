PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
STAMP := .venv/installed
TESTABLE := .venv/testable
ZOO := .venv/zoo
BROWSER := build/node_modules/ready
READERS := axe-core@4.14.1 html-validate@10.17.0
PIP := -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: install test test-zoo test-browser test-matrix fuzz faults notebooks docs reproduce audit release

install: $(STAMP)

# What the command needs, and no more, so that the first results come soon.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) -e '.[experiments]'
	touch $@

$(STAMP): $(READY)
	$(BIN)/python $(PIP) -e '.[dev]'
	touch $@

# Ray, Jupyter and the packages of the site, which most of a minute goes to, are for tests and documents alone.
$(TESTABLE): $(STAMP)
	$(BIN)/python $(PIP) -e '.[test]'
	touch $@

# Libraries of networks that the tests convert. Torch is pinned, so that pip keeps what is there.
$(ZOO): $(TESTABLE)
	$(BIN)/python $(PIP) -e '.[zoo]'
	touch $@

# What reads the page of the demo in its tests. Without npm or its registry these tests are skipped, and say so.
$(BROWSER): Makefile
	@mkdir -p build
	@if ! command -v npm > /dev/null; then echo "no npm: axe-core and html-validate do not read the page of the demo"; \
	elif npm install --silent --no-save --prefix build $(READERS); then touch $@; \
	else echo "npm cannot install $(READERS): they do not read the page of the demo"; fi

test: $(ZOO) $(BROWSER)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto --dist worksteal -rs

# Every network of tests/zoo with every step; writes the table of docs/networks-tried.md. make test-zoo NETWORKS='timm/*'
NETWORKS ?= *
test-zoo: $(ZOO)
	PYTHONPATH=tests $(BIN)/python -m zoo --networks '$(NETWORKS)'

# Installs no Chromium, but says if it is missing.
test-browser: $(BROWSER)
	@test -e $(BIN)/pytest || { echo "no $(BIN)/pytest: make install"; exit 1; }
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
		{ echo "no Chromium: apt-get install chromium, or your system's way"; exit 1; }
	$(BIN)/pytest -m browser -rs tests/demo

# Other versions of torch and Python, where the registry has small builds of them; says what it could not get.
test-matrix:
	.ci/matrix

# Drawn calls against references in float64, or damaged files: make fuzz CASES=100000 SEED=1, make fuzz KIND=files
KIND ?= calls
CASES ?= 10000
SEED ?= 0
fuzz: install
	PYTHONPATH=tests $(BIN)/python -m fuzz --kind $(KIND) --cases $(CASES) --seed $(SEED)

# Commands ended at 200 random moments and started again, full disks, two processes on one folder.
faults: install
	PYTHONPATH=tests $(BIN)/python -m fuzz.faults --seed $(SEED)

# The outputs that are stored in the notebooks.
notebooks: $(TESTABLE)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m helpers.notebook examples/*.ipynb

docs: $(TESTABLE)
	$(BIN)/mkdocs build --strict

reproduce: $(READY)
	$(BIN)/scaleconv reproduce table1 --preset quick --processes 0

# Known vulnerabilities of the pinned packages; strict, so that a package without data fails.
audit: install
	$(BIN)/python $(PIP) -e '.[release]'
	$(BIN)/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

# Builds dist/ twice, to the same bytes, and tries both files as a user would: in an environment with torch alone, away
# from the sources. Lists the packages of that environment (CycloneDX) beside the files.
release: install
	rm -rf build dist
	$(BIN)/python $(PIP) -e '.[release]'
	.ci/build dist
	.ci/build build/again
	diff -r dist build/again
	$(PYTHON) -m venv build/clean
	build/clean/bin/python $(PIP) dist/*.whl
	cd build && clean/bin/python -W ignore -c "$$LAYER_ALONE"
	cd build && clean/bin/scaleconv data info; test $$? -eq 2
	build/clean/bin/python $(PIP) --force-reinstall --no-deps dist/*.tar.gz
	build/clean/bin/python $(PIP) "$$(ls $(CURDIR)/dist/*.whl)[experiments]"
	cd build && clean/bin/scaleconv data info
	cp tests/typing_user.py build
	cd build && ../$(BIN)/mypy --strict --config-file= --python-executable clean/bin/python typing_user.py
	$(BIN)/cyclonedx-py environment build/clean/bin/python --output-file dist/sbom.json

define LAYER_ALONE
import torch, scaleconv
layer = scaleconv.SIConv2d(3, 8, 3)
layer(torch.rand(2, 3, 16, 16)).sum().backward()
assert layer.weight.grad.abs().sum() > 0
print(f"scaleconv {scaleconv.__version__} works on torch {torch.__version__} alone")
endef
export LAYER_ALONE
