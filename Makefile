# The two commands are `make demo` and `make test`; see README.md.
.PHONY: demo test coverage test-matrix lint compile bench chaos clean

PYTHON := .venv/bin/python

demo: .venv/stamp
	.venv/bin/metasched demo

test: .venv/stamp
	tests/run $(PYTEST_ARGS)

# which lines the tests, their daemons and workers run, for 1.4 to 2 times the processor time
coverage: .venv/stamp
	tests/run --cov --cov-config=pyproject.toml $(PYTEST_ARGS)

# the Slurm of later Debian releases, each in a folder of its own
test-matrix: .venv/stamp
	tests/matrix trixie forky

# ruff does not follow links, mypy does
lint: .venv/stamp
	$(PYTHON) -m ruff check metasched adapters policies db tests
	$(PYTHON) -m ruff format --check metasched adapters policies db tests
	$(PYTHON) -m mypy metasched tests

# an environment of its own with the compiled build
compile: .venv/stamp
	tests/compiled .compiled

bench: .venv/stamp
	tests/compiled .compiled || echo "metasched: warning: only pure Python is measured" >&2
	$(PYTHON) -m pytest tests/bench -m bench -q -s

# faults by the thousand; writes docs/reliability.md
chaos: .venv/stamp
	$(PYTHON) -m tests.chaos $(CHAOS_ARGS)

.venv/stamp: pyproject.toml tests/venv
	tests/venv

clean:
	rm -rf .venv .compiled .chaos dist .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
	find metasched adapters policies db tests -name __pycache__ -prune -exec rm -rf {} +
