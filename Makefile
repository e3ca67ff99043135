.PHONY: test
test: ## Run every check that CI runs
	uv sync --locked
	.venv/bin/ruff check src tests
	.venv/bin/mypy
