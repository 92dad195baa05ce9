# agentctl. The first three to know: `make demo`, `make check` and `make test`.
# Variables: PYTHON (an interpreter, 3.11 or later), VENV (default .venv), PORT (of demo and serve).

VENV ?= .venv
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; \
	done)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Install packages into an environment for tests: $(call install,ENVIRONMENT,ARGUMENTS). uv takes a
# tenth of the CPU time of pip. pip follows where uv cannot install: uv does not read pip.conf.
install = { $(BIN)/uv pip install --no-config --quiet --python $(1)/bin/python $(2) || \
	$(PIP) --python $(1)/bin/python install --no-compile $(2); }
LOCK := $(BIN)/uv pip compile --no-config --quiet --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate --no-emit-index-url
BENCH_PEERS := agentos langgraph litellm
PEERS := 2.7.2 3.1.10
OTHERS := claude-agent-sdk crewai haystack llama-index smolagents
OPENAI_PROGRAMS := adk ag2 agent-framework agno aider aisuite any-llm autogen crewai dspy gptme \
	griptape haystack instructor langchain litellm llama-index llm magentic mirascope openai \
	openai-agents pydantic-ai semantic-kernel shell-gpt smolagents strands
OPENAI_NODE := node node-agents node-libraries node-programs node-voltagent
# Without cached bytecode, every process of a test would compile all modules.
unexport PYTHONDONTWRITEBYTECODE
# The layers of the suite, in stages; ARGS has arguments for pytest. SEED=7 runs the files of `check`
# and `test` in a random order, the same each time: it shows tests that depend on earlier files.
RUN = $(BIN)/python -m tests.run
ORDER = $(if $(SEED),--seed $(SEED))

.PHONY: demo near check test test-long test-packaging test-machines test-lowest neighbours dist coverage lint docs golden vendor typescript bench bench-quick bench-hostile bench-scale sizing fuzz kills faults serve site compat test-bench test-traces lock clean

demo: $(VENV)/.installed
	@$(BIN)/agentctl serve --demo $(PORT:%=--port %)

serve: $(VENV)/.installed
	@$(BIN)/agentctl serve $(PORT:%=--port %)

# The fast tests near what has changed, half a minute: after each step of work. FILES names the
# changed files; without it, git does.
near: $(VENV)/.installed-test
	$(RUN) near $(FILES) $(if $(ARGS),-- $(ARGS))

# What can be tested in process and fast, a minute and a half on two cores: for each change.
check: $(VENV)/.compiled
	$(RUN) check $(ORDER) $(if $(ARGS),-- $(ARGS))

# All tests but the long ones, nine minutes on two cores: before a change is merged.
test: $(VENV)/.compiled .peers/oidc/.installed .peers/ai-sdk/.installed .peers/adk/.installed
	$(RUN) test $(ORDER) -- --durations=30 $(ARGS)

# Searches, matrices, sizes, kills, and pages that are executed. SHARD=1 to SHARD=8 is an eighth of
# it, five minutes; without it, all of them run one after another.
test-long: $(VENV)/.compiled .peers/pgbouncer/pgbouncer .peers/oidc/.installed \
		.peers/generators/.installed .peers/adk/.installed
	$(RUN) long $(if $(SHARD),--shard $(SHARD)) $(if $(ARGS),-- $(ARGS))

# PgBouncer 1.21 or later, from Debian 13 if the package of this system is older. Without it the
# tests with PgBouncer are skipped.
.peers/pgbouncer/pgbouncer: | $(VENV)/.installed-test
	@$(BIN)/python -m tests.poolers.fetch

# The tests of packaging/ that take minutes too: an installation from the package index, rolling
# restarts, the files of a release, the page "Deployment" on a new machine, and a container. Needs the
# Debian packages nginx-light, caddy, prometheus, mmdebstrap, podman and buildah; root for the last two.
test-packaging: $(VENV)/.installed-test .dist/.installed .peers/oidc/.installed \
		.peers/installers/.installed
	AGENTCTL_TEST_PACKAGING=1 $(BIN)/python -m pytest -q -rs tests/packaging

# README's first steps on Debian 12, Debian 13 and Ubuntu, with their own Python; CHECK=1 runs `make
# check` there, too. Needs mmdebstrap and ubuntu-keyring, and root.
test-machines: $(VENV)/.installed-test
	$(BIN)/python -m tests.packaging.machines $(if $(CHECK),--check)

# The fast tests with the oldest supported release of each dependency. The newer releases that some
# tools for tests require are replaced: the layout of tables in a terminal, which rich 14 has changed,
# is not tested here, nor doctor, which reports the oldest cryptography.
test-lowest: .lowest/.oldest
	.lowest/bin/python -m tests.run check -- \
		--deselect tests/architecture --deselect tests/docs --deselect tests/cli/test_doctor.py \
		--deselect tests/cli/test_pages.py \
		--deselect tests/cli/test_live_answer.py::test_notes_are_above_a_block_that_is_not_complete \
		--deselect tests/cli/test_live_answer.py::test_wide_tables_and_pictures_lose_nothing

# With the dependencies of the oldest releases: each pydantic needs its own pydantic-core. The libraries
# of agents need a newer typing-extensions. Without --upgrade, uv keeps the releases of an earlier file.
.lowest/.oldest: pyproject.toml requirements-test.lock
	$(MAKE) VENV=.lowest .lowest/.installed-test
	echo 'typing-extensions>=4.16' | .lowest/bin/uv pip compile --no-config --quiet --no-header \
		--upgrade --resolution lowest-direct --python .lowest/bin/python \
		pyproject.toml - -o .lowest/oldest.txt
	.lowest/bin/uv pip install --no-config --quiet --no-deps --python .lowest/bin/python \
		-r .lowest/oldest.txt
	@touch $@

# Resolve libraries alone and together with agentctl, and write docs/internals/neighbours.md; installs
# none of them. ONLY="crewai prefect" prints these rows and writes nothing.
neighbours: $(VENV)/.installed-test
	$(BIN)/python -m tests.packaging.neighbours $(ONLY)

# The files of a release in dist/: the same bytes for the same commit.
dist: .dist/.installed
	rm -rf dist
	.dist/bin/python packaging/build.py --out dist

.dist/.installed: packaging/requirements.txt $(VENV)/.made
	@$(PYTHON) -m venv .dist
	@.dist/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r $<
	@touch $@

# The statements and branches that `make check` executes, and that they are not fewer than the bound in
# pyproject.toml. LAYER=test measures `make test`.
coverage: $(VENV)/.compiled
	$(BIN)/coverage erase
	$(RUN) $(or $(LAYER),check) -- --cov --cov-append --cov-report= --cov-fail-under=0 $(ARGS)
	$(BIN)/coverage report

# The documentation site in build/guide, for `[server] guide` or any web server. A link that leads
# nowhere is an error.
site: $(VENV)/.installed-test
	rm -rf build/guide
	$(BIN)/python packaging/site/build.py --out build/guide

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m tests.architecture.prose
	$(BIN)/python -m tests.architecture.plain_code

docs: $(VENV)/.installed-test
	$(BIN)/python docs/generate.py

# Write every page that shows the output of a command or a face: the reference and the golden pages.
golden: docs
	AGENTCTL_TEST_WRITE=1 $(BIN)/python -m pytest tests/cli/test_pages.py
	AGENTCTL_TEST_WRITE=1 $(BIN)/python -m pytest tests/interop/test_recorded_runs.py
	AGENTCTL_TEST_WRITE=1 $(BIN)/python -m pytest tests/interop/test_faces.py

# Fetch the libraries of the console by version and hash; needs npm.
vendor: $(VENV)/.installed-test
	$(BIN)/python -m tests.kit.vendored

# Generate the types and the module of the TypeScript client; needs npm.
typescript: $(VENV)/.installed-test .peers/generators/.installed
	$(BIN)/python packaging/typescript/generate.py

# Traces in Phoenix, of instrumented agents and over three servers.
test-traces: $(VENV)/.installed-test .peers/traces/.installed
	AGENTCTL_TEST_LONG=1 $(BIN)/python -m pytest -q tests/telemetry

# Compare with AgentOS, langgraph dev, LiteLLM and the floors; writes docs/internals/benchmarks.md,
# which has the minutes of each part. Needs wrk. ONLY="tokens idle" measures these parts alone.
bench: $(VENV)/.installed-test $(BENCH_PEERS:%=.bench/%/.installed)
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY))

# Compare the hot paths with the floors, under a minute; fails if a ratio has clearly fallen.
bench-quick: $(VENV)/.installed-test
	$(BIN)/python -m bench.quick

# The tests of the benchmarks: each measurement that has one on little data, in a minute or two.
test-bench: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 --dist loadfile bench

# Measure the longest wait of a request while each of some seventy hostile peers works. Needs wrk.
bench-hostile: $(VENV)/.installed-test
	$(BIN)/python -m bench.hostile_peers

# Start the servers of two releases of AgentOS, and test with them and with their clients. Test the
# interface for clients of OpenAI with the programs of docs/openai.md, those for Node if there is npm,
# the page of docs/agui.md in chromium, and the MCP endpoint with the clients of libraries. Verify
# webhooks with the library standardwebhooks for Node. Run the wrappers of docs/other-libraries.md,
# each with its library, and public agents of all libraries against scripted models.
compat: $(VENV)/.installed-test $(PEERS:%=.peers/agentos-%/.installed) \
		$(OPENAI_PROGRAMS:%=.peers/openai/%/.installed) \
		$(OPENAI_NODE:%=.peers/openai/%/.installed) \
		.peers/agui/.installed .peers/webhooks/.installed \
		$(OTHERS:%=.peers/other-%/.installed) \
		.peers/agents/.installed .peers/mcp-clients/.installed .peers/s3/.installed \
		.peers/adk/.installed
	AGENTCTL_TEST_PEERS=1 $(BIN)/python -m pytest -n 2 --dist loadfile compat
	AGENTCTL_TEST_PEERS=1 $(BIN)/python -m pytest -q tests/runs/test_blobs.py

.peers/agentos-%/.installed: compat/requirements-%.txt
	@echo 'Creating an environment for AgentOS $* in .peers'
	@$(PYTHON) -m venv .peers/agentos-$*
	@.peers/agentos-$*/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	@touch $@

.peers/mcp-clients/.installed: compat/requirements-mcp-clients.txt \
		compat/requirements-mcp-agno.txt
	@echo 'Creating an environment for clients of MCP in .peers'
	@$(PYTHON) -m venv .peers/mcp-clients
	@.peers/mcp-clients/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	@$(PYTHON) -m venv .peers/mcp-clients/agno
	@.peers/mcp-clients/agno/bin/python -m pip --disable-pip-version-check --quiet install \
		-r compat/requirements-mcp-agno.txt
	@if command -v npm >/dev/null; then npm install --silent --prefix .peers/mcp-clients \
		@modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/inspector-cli@0.16.8; fi
	@touch $@

# Without Node 18 and npm, or offline, the tests with an identity provider are skipped.
.peers/oidc/.installed: packaging/container/sign-in/package-lock.json
	@mkdir -p .peers/oidc
	@cp packaging/container/sign-in/package.json packaging/container/sign-in/package-lock.json .peers/oidc
	@if node -e 'process.exit(parseInt(process.version.slice(1)) < 18 ? 1 : 0)' && \
		npm ci --silent --no-audit --no-fund --prefix .peers/oidc; then touch $@; \
		else echo 'npm cannot install an identity provider: its tests are skipped'; fi

# Without Node 20 and npm, or offline, the tests with the AI SDK's own client are skipped.
.peers/ai-sdk/.installed: tests/ai_sdk/package-lock.json
	@mkdir -p .peers/ai-sdk
	@cp tests/ai_sdk/package.json tests/ai_sdk/package-lock.json .peers/ai-sdk
	@if node -e 'process.exit(parseInt(process.version.slice(1)) < 20 ? 1 : 0)' && \
		npm ci --silent --no-audit --no-fund --prefix .peers/ai-sdk; then touch $@; \
		else echo 'npm cannot install the AI SDK: its tests are skipped'; fi

# Without Node 20 and npm, or offline, the tests of generated clients and of the types of the
# TypeScript client are skipped.
.peers/generators/.installed: tests/server/generated_clients/package-lock.json \
		tests/server/generated_clients/requirements.txt | $(VENV)/.installed-test
	@mkdir -p .peers/generators
	@cp tests/server/generated_clients/package.json $< .peers/generators
	@if node -e 'process.exit(parseInt(process.version.slice(1)) < 20 ? 1 : 0)' && \
		npm ci --silent --no-audit --no-fund --prefix .peers/generators && \
		$(PYTHON) -m venv --without-pip .peers/generators/python && \
		$(call install,.peers/generators/python,-r tests/server/generated_clients/requirements.txt); \
		then touch $@; else echo 'npm, uv or pip cannot install generators: the tests of clients are skipped'; fi

# Google ADK excludes the release of OpenTelemetry of the other tests. Without a package index, the
# tests with its agents are skipped.
.peers/adk/.installed: compat/requirements-adk.txt pyproject.toml | $(VENV)/.installed-test
	@echo 'Creating an environment with Google ADK in .peers'
	@$(PYTHON) -m venv --without-pip .peers/adk
	@if $(call install,.peers/adk,'setuptools>=80') && \
		$(call install,.peers/adk,--no-build-isolation -r $< -e .); then touch $@; \
		else echo 'uv and pip cannot install Google ADK: its tests are skipped'; fi

.peers/s3/.installed:
	@echo 'Creating an environment with a server of the interface of S3 in .peers'
	@$(PYTHON) -m venv .peers/s3
	@.peers/s3/bin/python -m pip --disable-pip-version-check --quiet install 'moto[server]==5.2.5'
	@touch $@

.peers/installers/.installed:
	@echo 'Creating an environment with pipx and uv in .peers'
	@$(PYTHON) -m venv .peers/installers
	@.peers/installers/bin/python -m pip --disable-pip-version-check --quiet install \
		pipx==1.18.4 uv==0.13.9
	@touch $@

.peers/webhooks/.installed:
	@echo 'Installing a library for receivers of webhooks in .peers'
	@mkdir -p .peers/webhooks
	@if command -v npm >/dev/null; then \
		npm install --silent --prefix .peers/webhooks standardwebhooks@1.1.1; fi
	@touch $@

.peers/traces/.installed: tests/telemetry/requirements.txt \
		tests/telemetry/requirements-instrumentation.txt
	@echo 'Creating an environment with Phoenix in .peers'
	@$(PYTHON) -m venv .peers/traces
	@.peers/traces/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	@.peers/traces/bin/python -m pip --disable-pip-version-check --quiet install --no-deps \
		--target .peers/traces/instrumentation -r tests/telemetry/requirements-instrumentation.txt
	@touch $@

.peers/agui/.installed:
	@echo 'Installing the client of AG-UI in .peers'
	@mkdir -p .peers/agui
	@if command -v npm >/dev/null; then \
		npm install --silent --prefix .peers/agui @ag-ui/client@1.0.0 esbuild@0.28.2; fi
	@touch $@

.peers/openai/node/.installed: compat/openai_programs/package.json
	@mkdir -p $(@D)
	@if command -v npm >/dev/null; then \
		cp $< $(@D) && npm install --silent --prefix $(@D); fi
	@touch $@

# Some have older peers than what they need.
.peers/openai/node-%/.installed: compat/openai_programs/package-%.json
	@mkdir -p $(@D)
	@if command -v npm >/dev/null; then cp $< $(@D)/package.json && \
		npm install --silent --legacy-peer-deps --prefix $(@D) && touch $@; fi

.peers/openai/%/.installed: compat/openai_programs/requirements-%.txt
	@echo 'Creating an environment for $* in .peers/openai'
	@$(PYTHON) -m venv .peers/openai/$*
	@.peers/openai/$*/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	@touch $@

.peers/other-%/.installed: compat/requirements-other-%.txt pyproject.toml
	@echo 'Creating an environment with $* in .peers'
	@$(PYTHON) -m venv .peers/other-$*
	@.peers/other-$*/bin/python -m pip --disable-pip-version-check --quiet install 'setuptools>=80'
	@.peers/other-$*/bin/python -m pip --disable-pip-version-check --quiet install \
		--no-build-isolation -r $< -e .
	@touch $@

.peers/agents/.installed: compat/requirements-agents.txt
	@echo 'Installing public agents in .peers'
	@$(PIP) install --no-deps --upgrade --target .peers/agents -r $<
	@touch $@

# Kill servers at each statement of approved calls, and at MOMENTS (default 100) random moments, on
# both databases; then put AgentOS and LangGraph to the same kill. About an hour.
kills: $(VENV)/.installed-test .peers/ledger/.installed
	$(BIN)/python -m tests.lab approvals --git .peers/ledger/bin/mcp-server-git \
		--deployment 'two on sqlite' --moments $(or $(MOMENTS),100)
	$(BIN)/python -m tests.lab approvals --git .peers/ledger/bin/mcp-server-git \
		--deployment 'three on postgresql' --moments $(or $(MOMENTS),100)
	$(BIN)/python -m compat.kills.peers

.peers/ledger/.installed: tests/lab/requirements-git.txt
	@echo 'Creating an environment for the ledger in .peers'
	@$(PYTHON) -m venv .peers/ledger
	@.peers/ledger/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	@touch $@

# Try the faults of the reference again, all of them or those of MODULE; with CHANGED=1 those of the
# modules that differ from main, with the tests that noticed them.
faults: $(VENV)/.installed-test
	nice $(BIN)/python -m tests.faults compare $(if $(CHANGED),--changed) $(MODULE:%=--module %)

# Send random requests over every route for SECONDS (default 60).
fuzz: $(VENV)/.installed-test
	nice $(BIN)/python -m tests.server.fuzz --seconds $(or $(SECONDS),60)

# Measure lists and appends with a million sessions: slow, and needs 6 GB of disk.
bench-scale: $(VENV)/.installed-test
	$(BIN)/python -m bench.scale

# Measure what one server needs: the figures of docs/deployment.md, in three minutes.
sizing: $(VENV)/.installed-test
	$(BIN)/python -m bench.sizing

.bench/%/.installed: bench/%-requirements.txt
	@echo 'Creating an environment for $* in .bench/$*'
	@$(PYTHON) -m venv .bench/$*
	@.bench/$*/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	@touch $@

lock: $(VENV)/.installed-test
	(echo '# Dependencies of agentctl, with hashes. Written by `make lock`; do not edit.'; \
		echo 'setuptools>=80' | $(LOCK) pyproject.toml - --upgrade --extra mcp) > requirements.lock.new
	(echo '# requirements.lock and the tools for tests and checks, with hashes. Written by `make lock`; do not edit.'; \
		echo 'setuptools>=80' | $(LOCK) pyproject.toml - --upgrade --extra test \
		--constraint requirements.lock.new) > requirements-test.lock.new
	(echo '# The tools that build a release, with hashes. Written by `make lock`; do not edit.'; \
		printf 'check-jsonschema>=0.39\ncyclonedx-bom>=7.5\nkubernetes-validate>=1.37\nsetuptools>=80\nzensical>=0.0.73,<0.1\n' | $(LOCK) - --upgrade \
		--constraint requirements.lock.new) > packaging/requirements.txt
	mv requirements.lock.new requirements.lock
	mv requirements-test.lock.new requirements-test.lock

clean:
	rm -rf $(VENV) .lowest .bench .peers .dist dist .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info

$(VENV)/.made:
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo 'make: Python 3.11 or later is missing; name one with PYTHON=...' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo 'make: $(PYTHON) has no venv with pip (Debian, Ubuntu: apt install python3-venv)' >&2; exit 1; }
	@echo 'Creating an environment in $(VENV), which takes a minute the first time'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made requirements.lock pyproject.toml
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# The file has all packages, so none needs others. Only a part of the modules is ever imported, and
# Python compiles those. The modules of `make demo` are among them.
$(VENV)/.installed-test: $(VENV)/.made requirements-test.lock pyproject.toml
	@awk '/^[a-z0-9]/ { uv = /^uv==/ } uv' requirements-test.lock >$(VENV)/.uv.txt
	@$(PIP) install --no-compile --require-hashes -r $(VENV)/.uv.txt
	@$(call install,$(VENV),--no-deps --require-hashes -r requirements-test.lock)
	@$(call install,$(VENV),--no-deps --no-build-isolation -e .)
	@touch $(VENV)/.installed $@

# Each of the processes of pytest would compile all tests of a new clone.
$(VENV)/.compiled: $(VENV)/.installed-test
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 || true
	@touch $@
