# Each target builds the environment that it needs: .venv has the newest PySpark 4, .venv-4.0 the oldest
# versions that the tests have run on. Needed: Python 3.11+ and Java 17+ (.ci/prerequisites looks).
PYTHON ?= python3
# Without Spark, and about Arrow, DuckDB, NumPy, Protobuf and plain objects: these run on the oldest versions
# too. What is about Lance alone doesn't: its oldest version is the newest that the bounds admit.
OLDEST = arrow_read arrow_types arrow_write bad_records batch_size changed_rows coercions column_order \
  corrupt_manifest deletes feed field_metadata filters frame_batches frames ids integrity kept_rows manifest_rows \
  merge_columns merge_schema metadata_frames narrow newer_publishes options page_rows plan plan_write \
  publisher python_workers ref_files snapshot stage storage store_answers store_assignment upsert upsert_steps
# On Spark 4.0 each plan starts a new process: these are what Spark's version matters to most, and
# `make test-floors SPARK_40=tests/spark` runs all files.
SPARK_40 = $(foreach name,catalog_tables counts filters_spark frames modes narrow narrow_random new_graphs python_api \
  sql streams_refused time_travel transactions types upsert_spark write,tests/spark/test_$(name).py)
FLOORS = pyspark==4.0.2 pylance==14.0.2 pyarrow==18.1.0 obstore==0.9.5 duckdb==1.5.0 numpy==1.26.4 protobuf==4.21.12
VENV = .venv
VENV_40 = .venv-4.0
VENV_CONNECT = .venv-connect
VENV_SITE = .venv-site
# Test files are shared out between processes, each with a Spark of its own (ARGS=-n0: one), in their
# order: those with few tests, put last, would keep one process waiting for the other. On two cores a
# third one runs while others wait; not so where tests race or wait for a store themselves.
PYTEST = -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder
PROCESSES = 2
test test-floors: PROCESSES = 3
export SPARK_LOCAL_IP = 127.0.0.1
# Every process of Spark's imports the package: without bytecode it compiles all of it first, half a second.
unexport PYTHONDONTWRITEBYTECODE

# Spark finds the source by itself only in the Python that PYSPARK_PYTHON names.
in_venv = PYSPARK_PYTHON=$(CURDIR)/$(1)/bin/python $(1)/bin/python
install = $(PYTHON) -m venv $(1) && $(1)/bin/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test test-engine test-floors test-rounds test-connect test-wheel test-all lint type format docs site bench chaos environments clean

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

demo: $(VENV)/.ready  ## read, copy and extend a real graph, and show it
	@$(call in_venv,$(VENV)) docs/demo/demo.py

test: $(VENV)/.ready  ## the tests on the newest PySpark 4; the long ones are in test-rounds
	$(call in_venv,$(VENV)) $(PYTEST) -m 'not long' --ignore=tests/interop/test_exports_spark.py --ignore=tests/engine $(ARGS)

# Programs of the original engine, named by the environment or kept beside the project
# (docs/internals/development.md); without one its tests are skipped. `ENGINE_TESTS=all` runs all of them.
ENGINE_TESTS = sample
test-engine: $(VENV)/.ready  ## the original engine's programs on graphs of ours, and the other way round
	OMNIGRAPH_ENGINE_TESTS=$(ENGINE_TESTS) $(call in_venv,$(VENV)) $(PYTEST) --dist load tests/engine $(ARGS)

QUERIES_40 = 300
test-floors: $(VENV_40)/.ready  ## all that touches PySpark, on 4.0 and the other oldest versions
	OMNIGRAPH_SPARK_QUERIES=$(QUERIES_40) $(call in_venv,$(VENV_40)) $(PYTEST) --timeout=3600 -m 'not long' tests/contract tests/interop $(SPARK_40) \
	  $(OLDEST:%=tests/unit/test_%.py) $(ARGS)

# What is long, and what chance decides, for many rounds; `test` runs the latter for a few. Longer still:
# `make test-rounds SEQUENCES=5000 KEYS=200 RACES=200 QUERIES=2000 REPLICAS=100 OUTCOMES=100 PREDICATES=300 SAMPLE=all`.
SEQUENCES = 60
QUERIES = 300
KEYS = 10
RACES = 20
REPLICAS = 1
OUTCOMES = 4
PREDICATES = 40
# Of a long test's cases, where they are many, a third each day; `SAMPLE=all`: all of them.
SAMPLE := $(shell expr $$(date +%j) % 3)
# The exports are read by Spark once here, on executors of their own, and by Spark 4.0 in `test-floors`.
test-rounds: $(VENV)/.ready  ## the long tests; random sequences and queries, races: many rounds
	$(call in_venv,$(VENV)) -m pytest tests/interop --spark-master 'local-cluster[2,1,1024]' $(ARGS)
	OMNIGRAPH_SPARK_SAMPLE=$(SAMPLE) OMNIGRAPH_SEQUENCES=$(SEQUENCES) OMNIGRAPH_SPARK_UPSERT_ROUNDS=$(KEYS) OMNIGRAPH_SPARK_RACES=$(RACES) \
	  OMNIGRAPH_SPARK_QUERIES=$(QUERIES) OMNIGRAPH_SPARK_TPCH=22 OMNIGRAPH_SPARK_REPLICAS=$(REPLICAS) \
	  OMNIGRAPH_SPARK_OUTCOMES=$(OUTCOMES) OMNIGRAPH_SPARK_PREDICATES=$(PREDICATES) \
	  $(call in_venv,$(VENV)) $(PYTEST) --timeout=3600 -m 'long or rounds' --ignore=tests/engine $(ARGS)

# One after the other: a server of Spark Connect has one port.
test-connect: $(VENV_CONNECT)/.ready  ## Spark Connect and pipelines, with what pyspark[connect,pipelines] needs
	$(call in_venv,$(VENV_CONNECT)) -m pytest tests/spark/test_connect.py tests/spark/test_pipelines.py $(ARGS)
	$(call in_venv,$(VENV_CONNECT)) -m pytest tests/spark/test_same_outcome.py -k one_outcome --spark-master connect $(ARGS)

test-wheel: $(VENV)/.ready  ## build wheel and sdist, install them in clean environments, run the quickstart
	.ci/wheel $(PYTHON) $(filter pyarrow==%,$(FLOORS)) $(filter pyspark==%,$(FLOORS)) 'pyspark>=4,<5'

test-all:  ## all five
	$(MAKE) test
	$(MAKE) -j2 test-connect test-engine
	$(MAKE) test-rounds
	$(MAKE) test-floors

lint: $(VENV)/.ready  ## ruff: rules and format
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

format: $(VENV)/.ready  ## let ruff mend and format
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

type: $(VENV)/.ready  ## mypy, strict
	$(VENV)/bin/mypy

docs: $(VENV)/.ready  ## write the generated tables of docs/ again
	$(call in_venv,$(VENV)) docs/generate.py

site: $(VENV_SITE)/.ready  ## the documentation site, in build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(VENV_SITE)/bin/mkdocs build --quiet --strict

bench: $(VENV)/.ready  ## measure beside Parquet, pylance and the API's own ceiling
	$(call in_venv,$(VENV)) benchmarks/bench.py $(ARGS)
	$(call in_venv,$(VENV)) benchmarks/memory.py
	$(call in_venv,$(VENV)) benchmarks/publishes.py --publishes 2000 --tables 50
	$(call in_venv,$(VENV)) benchmarks/integrity.py
	$(call in_venv,$(VENV)) benchmarks/upsert.py
	$(call in_venv,$(VENV)) benchmarks/maintenance.py
	$(call in_venv,$(VENV)) benchmarks/streams.py --batches 1000
	$(call in_venv,$(VENV)) benchmarks/requests.py

chaos: $(VENV)/.ready  ## kill writers and break stores; ARGS=--mutations plants bugs, ARGS=--large
	$(call in_venv,$(VENV)) -m tests.chaos $(ARGS)

environments: $(VENV)/.ready $(VENV_40)/.ready $(VENV_CONNECT)/.ready  ## build what the tests run in

clean:  ## remove the environments and what tests and tools left behind
	rm -rf $(VENV) $(VENV_40) $(VENV_CONNECT) $(VENV_SITE) .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready: pyproject.toml
	@.ci/prerequisites $(PYTHON)
	@echo "building $(VENV) (a few minutes the first time) …"
	@$(call install,$(VENV)) --upgrade --editable '.[dev]'
	@touch $@

$(VENV_40)/.ready: pyproject.toml Makefile
	@.ci/prerequisites $(PYTHON)
	@echo "building $(VENV_40) (a few minutes the first time) …"
	@$(call install,$(VENV_40)) --editable '.[test]' $(FLOORS)
	@touch $@

$(VENV_CONNECT)/.ready: pyproject.toml Makefile
	@.ci/prerequisites $(PYTHON)
	@echo "building $(VENV_CONNECT) (a few minutes the first time) …"
	@$(call install,$(VENV_CONNECT)) --editable '.[test]' 'pyspark[connect,pipelines]'
	@touch $@

# The package isn't installed here: the reference is read from the sources.
$(VENV_SITE)/.ready: pyproject.toml Makefile
	@.ci/prerequisites $(PYTHON)
	@echo "building $(VENV_SITE) …"
	@$(call install,$(VENV_SITE)) 'mkdocs-material==9.*' 'mkdocstrings[python]>=1.0'
	@touch $@
