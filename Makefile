# One command per job; `make` lists them. `make demo` and `make test` install what they need.

PY := .venv/bin/python
WITH_JAVA = JAVA_HOME="$$(sh scripts/java-home.sh)" && export JAVA_HOME &&
PYTEST := $(PY) -m pytest
# Only that benchmarks use names, attributes and parameters that exist: nothing else runs all of them.
UNCHECKED_IN_BENCHMARKS := union-attr misc arg-type index assignment list-item var-annotated
CHECKED := $(wildcard src tests scripts demo benchmarks examples)

# Tests start hundreds of Python processes, and none of them should have to compile its imports.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/bytecode

.DEFAULT_GOAL := help
.PHONY: help venv interop-env docs docs-serve demo test run-tests test-all test-others check-all test-fast soak judge kafka sail s3a standalone metastore clouds browser fuzz feeds lives schedules mutants interop spark-versions wheels lint types user-types format lock bench clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: .venv/.ready  ## Create .venv with Keytide, its Spark extra and the development tools

interop-env: .venv-pypaimon/.ready .venv-duckdb/.ready .venv-sail/.ready  ## Create .venv-pypaimon, .venv-duckdb and .venv-sail, for comparison

.venv/.ready: requirements-dev.lock pyproject.toml
	@sh scripts/make-venv.sh

.venv-pypaimon/.ready: requirements-pypaimon.lock | venv
	@sh scripts/make-pypaimon-env.sh

.venv-duckdb/.ready: requirements-duckdb.lock | venv
	@sh scripts/make-duckdb-env.sh

.venv-docs/.ready: requirements-docs.lock | venv
	@sh scripts/make-docs-env.sh

.venv-chdb/.ready: scripts/make-chdb-env.sh | venv
	@sh scripts/make-chdb-env.sh

.venv-java/.ready: scripts/get-paimon-java.sh
	@sh scripts/get-paimon-java.sh

.venv-clouds/.ready: scripts/get-clouds.sh
	@sh scripts/get-clouds.sh

.venv-browser/.ready: scripts/get-browser.sh | venv
	@sh scripts/get-browser.sh

.venv-spark-peers/.ready: scripts/get-spark-peers.sh | venv
	@sh scripts/get-spark-peers.sh || echo "Spark cannot write Delta and Iceberg tables for the tests"

.venv-kafka/.ready: scripts/get-kafka.sh | venv
	@sh scripts/get-kafka.sh

.venv-sail/.ready: scripts/make-sail-env.sh requirements-sail.lock | venv
	@sh scripts/make-sail-env.sh

.venv-metastore/.ready: scripts/get-metastore.sh | venv
	@sh scripts/get-metastore.sh

.venv-s3a/.ready: scripts/get-hadoop-aws.sh | venv
	@sh scripts/get-hadoop-aws.sh

docs docs-serve: export NO_MKDOCS_2_WARNING = 1

docs: .venv-docs/.ready  ## Build the documentation as a site in site/, and check its links and search
	@.venv-docs/bin/python -m mkdocs build --quiet
	@.venv-docs/bin/python -m pytest -m site tests/docs/test_site.py $(ARGS)

docs-serve: .venv-docs/.ready  ## Show the site while you write, at http://127.0.0.1:8000
	@.venv-docs/bin/python -m mkdocs serve

demo: venv  ## Run the demo
	@$(WITH_JAVA) $(PY) demo/demo.py

test: lint  ## Lint, check types and run the tests; large and slow tests run a different part each day
	@$(MAKE) --no-print-directory -j2 types run-tests

run-tests: venv interop-env
	@$(WITH_JAVA) sh scripts/run-tests.sh $(PYTEST)

test-all: export KEYTIDE_CASES = all
test-all: test  ## The same with every case of large tests

test-others: export KEYTIDE_CASES ?= others
test-others: run-tests  ## Run the cases that `make test` leaves out today

check-all:  ## `make test`, then `make test-others`; it fails if one of them does
	@bash scripts/check-all.sh

test-fast: venv  ## Run the tests without Spark and without slow tests; ARGS="-k name" selects tests
	@$(PYTEST) -n 2 -m "not spark and not cluster and not slow and not kafka and not metastore and not clouds and not standalone and not site and not browser" $(ARGS)

soak: venv  ## Run the tests that repeatedly kill Spark drivers and writers, for minutes
	@$(WITH_JAVA) $(PYTEST) -m soak $(ARGS)

kafka: venv .venv-kafka/.ready  ## Run the tests that read Kafka topics; they start their own broker
	@$(WITH_JAVA) sh scripts/get-spark-kafka.sh || true
	@$(WITH_JAVA) $(PYTEST) -n 0 -m kafka tests/kafka $(ARGS)

sail: venv .venv-sail/.ready  ## Run the tests on Sail, a Spark Connect server without a JVM
	@$(PYTEST) -n 0 tests/spark/test_sail.py $(ARGS)

s3a: venv .venv-s3a/.ready  ## Run the tests in which a Spark cluster reads a server of S3 by itself
	@$(WITH_JAVA) $(PYTEST) -n 0 -m cluster tests/cluster/test_cluster_s3.py $(ARGS)

standalone: venv  ## Run the tests on a standalone cluster, which they start: a master and two workers
	@$(WITH_JAVA) $(PYTEST) -n 0 -m standalone tests/standalone $(ARGS)

metastore: venv .venv-metastore/.ready  ## Run the tests of tables in a Hive Metastore; they start their own
	@$(WITH_JAVA) $(PYTEST) -n 0 -m metastore tests/metastore $(ARGS)

clouds: venv .venv-clouds/.ready  ## Run tests on servers of the S3, Google Cloud Storage and Azure protocols; KEYTIDE_STEPS=500 runs longer
	@$(PYTEST) -n 0 -m clouds tests/clouds $(ARGS)

browser: venv .venv-browser/.ready  ## Check the pages of keytide ui in a browser; screenshots are in build/ui-screenshots
	@$(PYTEST) -n 0 -m browser tests/ui $(ARGS)

fuzz: venv  ## Search for bugs with random use for MINUTES=10; FAR=1 uses an object store; SEED=1 REPLAY=sql:17 repeats a case
	@$(PY) tests/fuzz/fuzz_run.py --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) \
		$(if $(FAR),--far) $(if $(PARTS),--parts $(PARTS)) $(if $(REPLAY),--replay $(REPLAY))

schedules: venv  ## Run all interleavings of the requests of two operations, for MINUTES=60; ARGS="--preemptions 2 --faults" runs more
	@$(PY) tests/schedules/schedules_run.py --minutes $(or $(MINUTES),60) $(ARGS)

mutants: venv  ## Leave out one rule of the product at a time, and find a schedule with a wrong result for each
	@$(PY) tests/schedules/mutants.py $(ARGS)

lives: venv  ## Run random statements on a Spark cluster whose executors and drivers are killed, for MINUTES=60
	@$(WITH_JAVA) $(PY) tests/cluster/cluster_lives.py --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED))

feeds: venv  ## Feed tables from a simulated source by every tool, for MINUTES=60
	@$(PY) tests/fuzz/fuzz_run.py --minutes $(or $(MINUTES),60) --parts sources $(if $(SEED),--seed $(SEED))

interop: venv interop-env .venv-java/.ready .venv-spark-peers/.ready  ## Run the tests in which other readers and writers check the results
	@$(WITH_JAVA) $(PYTEST) -k interop $(ARGS)

judge: venv interop-env .venv-java/.ready .venv-spark-peers/.ready .venv-chdb/.ready  ## Judge other readers of the tables, and write docs/judged-readers.md
	@$(WITH_JAVA) PYTHONPATH=src $(PY) tests/interop/judged_page.py

spark-versions: venv  ## Run the Spark tests with the oldest supported pyspark
	@$(WITH_JAVA) sh scripts/spark-versions.sh $(VERSIONS)

wheels: venv  ## Build the wheel and test it on every Python that is found; PYTHONS="..." selects others
	@sh scripts/try-wheels.sh $(PYTHONS)

lint: venv  ## Check style and formatting
	@$(PY) -m ruff check --quiet $(CHECKED)
	@$(PY) -m ruff format --check --quiet $(CHECKED) || { echo "run make format to fix this"; exit 1; }

types: venv  ## Check types
	@$(PY) -m mypy --no-error-summary
	@MYPYPATH=src:benchmarks $(PY) -m mypy --config-file= --no-error-summary --ignore-missing-imports \
		--follow-imports=silent $(addprefix --disable-error-code=,$(UNCHECKED_IN_BENCHMARKS)) benchmarks

user-types: venv  ## Check code of users with pyright and mypy against the wheel, in .venv-types
	@sh scripts/user-types.sh

format: venv  ## Fix what the linter can fix, and format the code
	@$(PY) -m ruff check --fix --quiet $(CHECKED)
	@$(PY) -m ruff format --quiet $(CHECKED)

lock: venv  ## Pin the latest versions that pyproject.toml allows
	@sh scripts/lock.sh

bench: .venv/.bench  ## Run the benchmarks of Keytide and comparable tools
	@$(WITH_JAVA) $(PY) benchmarks/run.py $(ARGS)

.venv/.bench: requirements-bench.lock | venv
	@$(PY) -m pip install -q -r requirements-bench.lock && touch $@

clean:  ## Remove caches and outputs, but keep the environments
	@rm -rf build dist demo-output site spark-warehouse metastore_db derby.log \
		.pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	@find $(CHECKED) -name __pycache__ -prune -exec rm -rf {} +
