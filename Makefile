# `make demo` and `make test` each do everything that they need, on a fresh machine too.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-llm test-vscode gpu check fix bench-dev clean
PYTHON_SOURCES := contracts engine hiera_lsp tests bench examples

help:  ## list these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

.venv/ready: pyproject.toml .ci/setup
	@bash .ci/setup

setup: .venv/ready  ## make .venv with HIERA and the torch that fits this machine

.venv/installed: .venv/ready $(shell find contracts engine hiera_lsp -type f -not -name '*.pyc')
	@.venv/bin/python -m pip --disable-pip-version-check -q install --no-deps . && touch $@

demo: .venv/installed  ## optimise an example, with a GPU or without one
	.venv/bin/hiera optimize examples/geglu_feed_forward.py --preset quick

test: .venv/ready  ## run all tests that this machine can run
	.venv/bin/python -m pytest -q

test-llm: .venv/ready  ## ask a real small language model on the CPU (0.5 GB, once)
	-.venv/bin/python -m pip install -q xllamacpp==2026.10.11549
	HIERA_TEST_LLM=1 .venv/bin/python -m pytest -q -rs -m llm tests/test_llm_real.py

test-vscode: .venv/ready  ## test the extension in real VS Codes (needs Node 20.11 and npm)
	@bash .ci/vscode

gpu: .venv/ready  ## run the tests that need a GPU
	.venv/bin/python -m pytest -q -m gpu

check: .venv/ready  ## lint
	.venv/bin/ruff check $(PYTHON_SOURCES)

fix: .venv/ready  ## lint and mend what can be mended
	.venv/bin/ruff check --fix $(PYTHON_SOURCES)

bench-dev: .venv/installed  ## KernelBench tasks (docs/bench.md): make bench-dev TASKS=tasks.jsonl OUT=results.jsonl
	.venv/bin/hiera bench $(TASKS) --out $(OUT) --resume --commit "$$(git rev-parse --short=12 HEAD)" $(FLAGS)

clean:  ## remove what set-up made
	rm -rf .venv build dist *.egg-info
