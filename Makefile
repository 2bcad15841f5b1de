# Every target does its own set-up: `make demo` and `make test` work in a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
DOCS_ADDRESS ?= 127.0.0.1:8000
# Tests start many processes, each of which would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-all test-fast fuzz faults audit lock browser strace nginx bench docs docs-sources docs-site docs-tables lint experiments clean

setup: .venv/.dev

# pip finds the CPU build of torch where it is offered; the stamps make sure each set-up runs once a change.
.venv/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

# What nobody imports need not be compiled, which is most of it; and what demos need is among it.
.venv/.dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]'
	touch .venv/.installed $@

demo: .venv/.installed
	$(BIN)/rankfall demo --out demo --force

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src tests docs_site tools experiments benchmarks
	$(BIN)/lint-imports

# Tests of the service's page need a browser. Only root may install Debian's; where there is none those tests skip.
browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome \
	  || { test "$$(id -u)" = 0 && apt-get update --quiet=2 && apt-get install --yes --quiet=2 --no-install-recommends chromium; } \
	  || echo "no browser: the tests of the page will skip; install chromium to run them"

# A test reads the system calls of all commands, to see that none talks to other machines; without strace it skips.
strace:
	@command -v strace \
	  || { test "$$(id -u)" = 0 && apt-get update --quiet=2 && apt-get install --yes --quiet=2 --no-install-recommends strace; } \
	  || echo "no strace: the test of connections to other machines will skip"

# A trial attacks a service behind nginx, with the configuration of SECURITY.md; without nginx it skips.
nginx:
	@command -v nginx \
	  || { test "$$(id -u)" = 0 && apt-get update --quiet=2 && apt-get install --yes --quiet=2 --no-install-recommends nginx-light; } \
	  || echo "no nginx: the trial of a proxy will skip"

# Tests of services and of other processes wait a lot, so that three processes keep two cores busy. The checks of `lint`
# run meanwhile; their output follows that of the tests, and either of both fails the target. In a fresh clone one process
# imports everything first, otherwise each of the three would compile it.
TESTS ?= not trial
test: .venv/.dev browser strace
	@log=$$(mktemp); $(MAKE) --no-print-directory lint >"$$log" 2>&1 & lint=$$!; \
	test -d src/rankfall/__pycache__ || $(BIN)/pytest --collect-only --quiet >/dev/null; \
	$(BIN)/pytest -n 3 --dist loadgroup --durations=25 -m "$(TESTS)"; tests=$$?; \
	wait $$lint; checks=$$?; cat "$$log"; rm -f "$$log"; \
	test $$tests -eq 0 && test $$checks -eq 0

# Before a release: with trials (services under load, Ray, notebooks, all widths of pages, ...), rounds of generated cases
# from new seeds, and every command with a fault at each operation on disk. More than an hour.
test-all: nginx
	$(MAKE) --no-print-directory test TESTS="trial or not trial"
	$(MAKE) --no-print-directory fuzz MINUTES=15
	$(MAKE) --no-print-directory faults

# A check while working: less than three minutes on two cores, and every package is covered.
test-fast: .venv/.dev
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow and not service and not ray and not browser and not trial"

# Every command with an error, a kill and a full disk at each operation on disk; FAULTS="--commands export" chooses commands.
faults: .venv/.dev
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m support.fault_table $(FAULTS)

# Generated cases for a long time: rounds from new seeds, and coverage-guided fuzzing. CONTRIBUTING.md says how to repeat.
MINUTES ?= 60
fuzz: .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fuzz]' \
	  || echo "atheris cannot be installed here: no coverage-guided fuzzing"
	$(BIN)/python tests/fuzz/long_mode.py --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

# pip-audit has an environment of its own, so that it does not change what is audited.
.venv/tools/.installed:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m venv .venv/tools
	.venv/tools/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	touch $@

# Known vulnerabilities of the locked versions. Exit code 2 if no database of them can be reached.
audit: .venv/tools/.installed
	.venv/tools/bin/python tools/audit.py

# The versions in .venv with the hashes of their files; to be run after `make test` in a fresh environment.
lock: .venv/.dev
	$(BIN)/python tools/lock.py

bench: .venv/.installed
	$(BIN)/rankfall bench ops
	$(BIN)/rankfall bench losses
	$(BIN)/rankfall bench loader
	$(BIN)/rankfall bench step

# Pages are generated first, so that any generator can build the site. `make test` builds it with --strict.
docs-sources: .venv/.dev
	$(BIN)/python -m docs_site.build .site

docs: docs-sources
	@echo "documentation: http://$(DOCS_ADDRESS)/"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --config-file .site/mkdocs.yml --dev-addr $(DOCS_ADDRESS)

docs-site: docs-sources
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file .site/mkdocs.yml --site-dir $(CURDIR)/site

docs-tables: .venv/.dev
	$(BIN)/pytest --collect-only --quiet --correctness=docs/reference/correctness.md
	$(BIN)/python -m docs_site.coverage docs/reference/coverage.md

# Hours, not minutes, on small machines. Needs RANKFALL_DATA, a directory with mq2007, mslr_sample and clueweb09.
experiments: .venv/.dev
	test -n "$(RANKFALL_DATA)" || { echo "set RANKFALL_DATA to the directory of the data sets"; exit 1; }
	test -d prepared/mq2007 || $(BIN)/rankfall prepare letor --out prepared/mq2007 \
	  $(foreach part,S1 S2 S3 S4 S5,$(part)=$(RANKFALL_DATA)/mq2007/features46_$(part).txt.gz)
	test -d prepared/mslr_sample || $(BIN)/rankfall prepare letor --out prepared/mslr_sample \
	  all=$(RANKFALL_DATA)/mslr_sample/mslr_sample.txt.gz
	test -d prepared/clueweb09 || $(BIN)/rankfall prepare letor --out prepared/clueweb09 \
	  $(foreach part,1 2 3 4 5,$(RANKFALL_DATA)/clueweb09/fold$(part).txt.gz)
	$(foreach name,mq2007 mslr_sample clueweb09,$(BIN)/rankfall compare experiments/$(name).yaml --out runs/$(name) --jobs 2;)
	test -d prepared/recflow-like || $(BIN)/rankfall simulate prepared/recflow-like --preset recflow-like --seed 1
	test -d prepared/recflow-like-3 || $(BIN)/rankfall simulate prepared/recflow-like-3 --preset recflow-like-3 --seed 1
	test -d prepared/mq2007-funnel || $(BIN)/rankfall prepare rows --spec examples/mq2007/spec.yaml --out prepared/mq2007-funnel
	$(foreach name,recflow_like recflow_like_3 mq2007_funnel,$(BIN)/rankfall compare experiments/$(name).yaml --out runs/$(name) --jobs 2;)
	$(foreach preset,recflow-like recflow-noisy recflow-like-3,test -d prepared/$(preset)-1500 || \
	  $(BIN)/rankfall simulate prepared/$(preset)-1500 --preset $(preset) --seed 1 --requests-per-day 1500;)
	$(foreach name,lcron_table2 lcron_table6,$(BIN)/rankfall compare experiments/$(name).yaml --out runs/$(name) --jobs 2;)
	$(BIN)/rankfall compare experiments/lcron_table2.yaml --out runs/lcron_table2_noisy --jobs 2 data.path=prepared/recflow-noisy-1500

clean:
	rm -rf .venv .fuzz demo site .site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
