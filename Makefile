# The two commands of the README are `make rehearse` and `make test`; both prepare the machine by themselves.
.DEFAULT_GOAL := help
.PHONY: help setup rehearse test test-full lint unit docs-test bench-local bench-boot bench-cpu bench-decode bench-formats locks readmes clean

CI := .venv/bin/python tools/ci.py

help: ## Show these targets
	@awk -F ':[^#]*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## Prepare this machine (root): host packages, venv, Packer; skips what is there
	@tools/bootstrap $(MAKECMDGOALS)

rehearse: setup ## Bake an image, launch three machines of it and ask them a question, all on this machine (root)
	@.venv/bin/ingot rehearse

test: setup ## Run everything that CI runs (root)
	@$(CI)

test-full: setup ## Run `make test` and the long checks, and write docs/test-full-report.md (root)
	@$(CI) --full

lint: .venv ## Run the static checks only
	@$(CI) --only lint

unit: .venv ## Run the unit tests only
	@$(CI) --only unit

docs-test: setup ## Run every command of README.md and docs/ in the local region (root)
	@$(CI) --only docs

bench-local: setup ## Measure the local EC2: launch to SSH, ten launches at once, CreateImage (root)
	@.venv/bin/python tools/bench_local.py

bench-boot: setup ## Measure launch to first right token, baked against installed at boot, and write docs/bench-boot.md (root)
	@.venv/bin/python tools/bench_boot.py

bench-cpu: setup ## Measure tuned against stock vLLM on this machine, and write docs/bench-cpu.md (root)
	@.venv/bin/python tools/bench_cpu.py

bench-decode: setup ## Measure how much of the memory's bandwidth decoding takes, and write docs/bench-decode.md (root)
	@.venv/bin/python tools/bench_decode.py

bench-formats: setup ## Try the number formats of weights on this machine's CPUs, and write docs/formats.md (root)
	@.venv/bin/python tools/bench_formats.py

locks: .venv ## Make the lock files anew from files/versions.yml
	@.venv/bin/python tools/locks.py --uv "$$(.venv/bin/python tools/venvs.py)"

readmes: .venv ## Write what is generated: variable tables of the roles, docs/variables.md and defects.md, Packer templates
	@.venv/bin/python tools/role_readme.py
	@.venv/bin/python tools/variables_doc.py
	@.venv/bin/python tools/packer_templates.py
	@.venv/bin/python tools/defects_doc.py

clean: ## Remove the venv and tool caches of this checkout (the cache outside it stays)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .ansible

.venv:
	@tools/bootstrap $(MAKECMDGOALS)
