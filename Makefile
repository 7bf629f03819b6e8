# The two commands are `make demo` and `make test`; see README.md. Contributors use `make check`.
.PHONY: demo test check coverage lowest test-matrix test-clients lint docs pictures man compile dist bench chaos load clean

PYTHON := .venv/bin/python

# images of containers set it: each daemon and command of a test would compile what it imports
unexport PYTHONDONTWRITEBYTECODE

demo: .venv/stamp
	.venv/bin/metasched demo

# what a contributor runs before each commit: linters, types, unit and property tests, the latter
# with a fifth of the examples of `make test`
check: lint
	$(PYTHON) -m pytest tests/unit tests/property -q -m "not install" --hypothesis-profile=check \
		--durations=20 --numprocesses=2 --dist=worksteal $(PYTEST_ARGS)

test: .venv/stamp
	tests/run $(PYTEST_ARGS)

# which lines the tests, their daemons and workers run, for 1.4 to 2 times the processor time
coverage: .venv/stamp
	tests/run --cov --cov-config=pyproject.toml $(PYTEST_ARGS)

# some files of the tests, with the lowest versions that pyproject.toml allows
lowest: .venv/stamp
	tests/lowest $(PYTEST_ARGS)

# the Slurm of later Debian releases, each in a folder of its own; a site under systemd, in a container
test-matrix: .venv/stamp
	tests/matrix trixie forky
	tests/systemd

# workflow tools and libraries, from the package index, through the drop-in commands
test-clients: .venv/stamp
	# by the interpreter of .venv, which other accounts can run
	$(PYTHON) -m venv .clients && .clients/bin/pip install -q -r tests/clients/requirements.txt
	tests/packages r-cran-batchtools || echo "metasched: warning: batchtools will not be tested" >&2
	METASCHED_CLIENTS=$(CURDIR)/.clients/bin/python $(PYTHON) -m pytest tests/clients -q $(PYTEST_ARGS)

# ruff does not follow links, mypy does
lint: .venv/stamp
	$(PYTHON) -m ruff check metasched adapters policies db tests packaging
	$(PYTHON) -m ruff format --check metasched adapters policies db tests packaging
	$(PYTHON) -m mypy metasched tests packaging/build_hook.py
	.venv/bin/lint-imports

# the site of the documents, in site/; a warning is an error
docs: .venv/stamp
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet

# the pictures of docs/web.md, drawn by a test; look at them before you commit them
pictures: .venv/stamp
	METASCHED_SCREENSHOTS=docs/pictures $(PYTHON) -m pytest tests/e2e/test_web_site.py -q -n 0

# the manual pages, from the help of the commands
man: .venv/stamp
	$(PYTHON) -m metasched.cli.man_pages man

# an environment of its own with the compiled build
compile: .venv/stamp
	tests/compiled .compiled

# an archive for hosts without network, in dist/
dist: .venv/stamp
	packaging/archive

# writes docs/benchmarks.md; BENCH_ARGS="-m cpu" takes the benchmarks of processor time alone
bench: .venv/stamp
	tests/compiled .compiled || echo "metasched: warning: only pure Python is measured" >&2
	$(PYTHON) -m pytest tests/bench -m bench -q -s $(BENCH_ARGS); status=$$?; \
		$(PYTHON) -m tests.bench.figures && exit $$status

# faults by the thousand, written to docs/reliability.md; what attacks of an account cost another;
# then ten times as many new random examples; then the search for defects that patches restore
chaos: .venv/stamp
	$(PYTHON) -m tests.chaos $(CHAOS_ARGS)
	$(PYTHON) -m tests.hostile $(HOSTILE_ARGS)
	$(PYTHON) -m pytest tests/property tests/hostile/test_schema.py -q --hypothesis-profile=explore --numprocesses=2 --timeout=3600
	$(PYTHON) -m tests.chaos.mutants $(MUTANT_ARGS)

# many accounts load real clusters for minutes while faults strike; writes docs/load.md
load: .venv/stamp
	$(PYTHON) -m tests.load --write $(LOAD_ARGS)

.venv/stamp: pyproject.toml tests/venv
	tests/venv

clean:
	rm -rf .venv .clients .compiled .lowest .chaos dist .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
	find metasched adapters policies db tests -name __pycache__ -prune -exec rm -rf {} +
