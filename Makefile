# Short names for the scripts. A target runs one script and adds no logic of its own.
.DEFAULT_GOAL := help
.PHONY: help run quick test gate lint docs bench faults wheel clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

run: ## Run the demo: two members share a topic, and one takes over from the other
	bash scripts/run

quick: ## Run the core tests without the slowest (2 minutes)
	bash scripts/test --quick

test: ## Run the unit tests and the core promises on real brokers (10 minutes)
	bash scripts/test

gate: ## Run what a change must pass besides: all promises under all protocols, faults, the demo (15 minutes)
	bash scripts/test --gate

lint: ## Check types and style
	bash scripts/lint

docs: ## Build the documentation site
	bash scripts/docs

bench: ## Measure the throughput beside Spark's own source
	bash scripts/bench

faults: ## Run the fault rig for a short while
	bash scripts/faults --smoke

wheel: ## Build the source archive and the wheel into dist/
	bash scripts/wheel

clean: ## Delete what builds and tests leave; keep .venv-groupkafka and downloads
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache run-output faults-out spark-warehouse
