SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SPARK := scripts/with-spark.sh
# Tests start many short-lived sessions, for which code that is compiled quickly is fast enough.
QUICK_JAVA := JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Every process of `make test-fast` imports all tests: compiled files of the last run save it 9 s.
COMPILED := PYTHONDONTWRITEBYTECODE=
PYTHON_TREES := $(wildcard src tests benchmarks examples)

.PHONY: help demo test test-all test-fast test-versions fmt check bench bench-scale bench-checkpoints bench-output bench-timers bench-windows bench-ttl bench-savepoints bench-functions bench-driver figures docs ci clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## Run the demonstration: a stateful job with live progress and a summary
	@$(SPARK) $(BIN)/python examples/demo.py

test: $(READY) ## Everything that must pass before a change: checks, and all tests but slow ones
	@$(QUICK_JAVA) scripts/test.sh "not slow"

test-all: $(READY) ## Checks, and all tests, slow ones included
	@$(QUICK_JAVA) scripts/test.sh

test-fast: $(READY) ## The tests that need no Spark, on all cores (a minute and a half on two)
	@$(COMPILED) $(BIN)/pytest -n auto --dist worksteal -o tmp_path_retention_policy=failed -m "not slow and not spark"

test-versions: ## The fast tests and a part of the Spark tests on the lowest and highest versions (ARGS="3.12-4.3")
	@$(QUICK_JAVA) scripts/test_versions.sh $(ARGS)

fmt: $(READY) ## Format the code and fix what can be fixed by itself
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

check: $(READY) ## Lint, format, types, layers and spelling, changing nothing
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(PYTHON_TREES)
	@$(BIN)/lint-imports
	@$(BIN)/codespell

bench: $(READY) ## Throughput beside Spark's own stateful operators (ARGS="--quick --only W1")
	@$(SPARK) $(BIN)/python -m benchmarks.run $(ARGS)
	@$(if $(ARGS),,$(SPARK) $(BIN)/python -m benchmarks.checkpoints)
	@$(if $(ARGS),,$(SPARK) $(BIN)/python -m benchmarks.output)
	@$(if $(ARGS),,$(SPARK) $(BIN)/python -m benchmarks.timers)
	@$(if $(ARGS),,$(SPARK) $(BIN)/python -m benchmarks.windows)
	@$(if $(ARGS),,$(SPARK) $(BIN)/python -m benchmarks.window_latency)
	@$(if $(ARGS),,$(SPARK) $(BIN)/python -m benchmarks.ttl)
	@$(if $(ARGS),,$(SPARK) $(BIN)/python -m benchmarks.savepoints)
	@$(if $(ARGS),,$(SPARK) $(BIN)/python -m benchmarks.functions)

bench-output: $(READY) ## Part of bench: what exactly once costs, what unaligned checkpoints gain
	@$(SPARK) $(BIN)/python -m benchmarks.output $(ARGS)

bench-timers: $(READY) ## Part of bench: registering and firing a million keys' timers, beside Spark's
	@$(SPARK) $(BIN)/python -m benchmarks.timers $(ARGS)

bench-windows: $(READY) ## Part of bench: counts in windows and their latency, beside Spark's own aggregation
	@$(SPARK) $(BIN)/python -m benchmarks.windows $(ARGS)
	@$(SPARK) $(BIN)/python -m benchmarks.window_latency $(ARGS)

bench-ttl: $(READY) ## Part of bench: what a time to live costs, what the sweep frees
	@$(SPARK) $(BIN)/python -m benchmarks.ttl $(ARGS)

bench-savepoints: $(READY) ## Part of bench: a savepoint and a start with more subtasks, beside Spark's
	@$(SPARK) $(BIN)/python -m benchmarks.savepoints $(ARGS)

bench-functions: $(READY) ## Part of bench: functions that stay open between epochs, beside those that do not
	@$(SPARK) $(BIN)/python -m benchmarks.functions $(ARGS)

bench-scale: $(READY) ## What an event costs as the state grows, and how much memory it takes
	@$(SPARK) $(BIN)/python -m benchmarks.scale $(ARGS)

bench-driver: $(READY) ## The driver's work for an epoch as the number of subtasks grows, without Spark
	@$(BIN)/python -m benchmarks.driver $(ARGS)

bench-checkpoints: $(READY) ## Part of bench: what checkpoints cost, how long a recovery takes
	@$(SPARK) $(BIN)/python -m benchmarks.checkpoints $(ARGS)

chaos: $(READY) ## Strike at a job at random, compare its state and output (ARGS="--hours 1")
	@$(SPARK) $(BIN)/python -m tests.chaos.run $(ARGS)

example-%: $(READY)
	@$(SPARK) $(BIN)/python examples/$*.py

figures: $(READY) ## Draw the figures of the documentation again
	@$(BIN)/python -m benchmarks.figure
	@$(BIN)/python scripts/draw_packages.py

docs: $(READY) ## Run the examples in the documentation
	@$(SPARK) $(BIN)/pytest tests/unit/test_docs.py tests/integration/test_docs.py

ci: ## Exactly what continuous integration runs
	@.ci/run

clean: ## Remove what was generated (all but .venv and .versions)
	@rm -rf build dist spark-warehouse metastore_db derby.log
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests benchmarks examples scripts -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(READY): pyproject.toml scripts/venv.sh
	@scripts/venv.sh $(VENV)
	@touch $@
