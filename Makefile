# The commands of a contributor and of a new user. Every target installs what it needs (tools/install.sh).
#   make run          build, serve the bundled model, fine-tune it with the tinker SDK    make test    the fast suite
#   make run-train    fine-tune the bundled model without a server                        make e2e     the SDKs' tests
#   make cookbook     recipes of the tinker-cookbook against a server                     make build   build/release/strata
#   make run-smollm2  fine-tune SmolLM2-135M on real text                                 make page    the live page
#   make tiny-qwen3   pre-train the bundled model again                                   make asan tsan fuzz tidy format
#   make peers        speeds of PEFT, vLLM, llama.cpp and Strata in turn: docs/peers.md
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: help install build test stages ranks checks asan tsan fuzz tidy format format-check run run-train e2e e2e-clients events cookbook robust chaos serve-ranks many-tenants page json-schemas \
  documents package packages-test build-on run-smollm2 random-models \
  compare-llama-cpp llama-cpp peers tiny-qwen3 mtp-demo clean

JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
LOAD_SECONDS ?= 20
CHAOS_SECONDS ?= 600
MODELS ?= 200
MTP_SIZE ?= large
SEED ?= $$(date +%s)
SUITE ?= trixie
KILLS ?= 3
TENANTS_SECONDS ?= 600
MIXED_SECONDS ?= 30
# new_delete_type_mismatch: libboost_json frees with an alignment what it allocated without one.
SANITIZER_OPTIONS := ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:new_delete_type_mismatch=0 \
  UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
# ccache when it is there; nothing depends on it. Evaluated when a recipe runs, after the install. A source that
# build/release compiled is not compiled again for build/test, nor in another clone: no folder's name is part of what is
# looked up.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_DEPEND := 1
CCACHE = $$(command -v ccache >/dev/null 2>&1 && echo -DCMAKE_CXX_COMPILER_LAUNCHER=ccache || true)
CMAKE = cmake -S . -G Ninja -DCMAKE_BUILD_TYPE=Release --log-level=WARNING $(CCACHE)
CLANG = -DCMAKE_CXX_COMPILER=clang++-19 -DSTRATA_TESTS=ON -DSTRATA_BATCHES=OFF
FORMATTED = git ls-files -z '*.h' '*.cc' '*.cu' '*.cuh'

help:
	@sed -n '1,7s/^# \{0,1\}//p' Makefile

install:
	@tools/install.sh run

build: install
	@tools/fetch_xgrammar.sh
	@$(CMAKE) -B build/release -DCMAKE_CXX_COMPILER=g++
	@cmake --build build/release --target strata install_files -j $(JOBS)

# One Release build with tests; then the fast suite, whose closing lines are the last of the output.
test:
	@tools/install.sh test
	@$(MAKE) --no-print-directory checks format-check
	@tools/fetch_xgrammar.sh
	@$(CMAKE) -B build/test -DCMAKE_CXX_COMPILER=g++ -DSTRATA_TESTS=ON
	@cmake --build build/test -j $(JOBS)
	@ctest --test-dir build/test -j2 -LE slow --output-on-failure --no-tests=error

# Every division of a model of every family into stages, where `make test` has each pair of settings.
stages:
	@tools/install.sh test
	@tools/fetch_xgrammar.sh
	@$(CMAKE) -B build/test -DCMAKE_CXX_COMPILER=g++ -DSTRATA_TESTS=ON
	@cmake --build build/test -j $(JOBS) --target stages_test
	@STRATA_STAGES=all build/test/tests/stages/stages_test --gtest_filter='-*Divisions*' --gtest_brief=1

# Every division of every family as threads; runs divided among processes that mpirun starts, every division and fault, where
# `make test` has a few; then as on two hosts, over TCP and bad links (as root).
ranks:
	@tools/install.sh test
	@tools/fetch_xgrammar.sh
	@$(CMAKE) -B build/test -DCMAKE_CXX_COMPILER=g++ -DSTRATA_TESTS=ON
	@cmake --build build/test -j $(JOBS) --target ranks_test stages_test
	@STRATA_STAGES=all build/test/tests/stages/stages_test --gtest_filter='*Divisions*' --gtest_brief=1
	@STRATA_RANKS=all build/test/tests/ranks/ranks_test --gtest_brief=1
	@python3 tests/ranks/two_hosts.py build/test/strata models/tiny-qwen3 examples/answers.jsonl

# A server over ranks against one process, by the official SDK and OpenAI's; each rank stopped, and each killed.
serve-ranks: build
	@tools/install.sh sdk
	@tools/install.sh test
	@for kind in pipeline tensor expert; do TINKER_TELEMETRY=0 "$$(tools/run/sdk_python.sh)" tests/e2e/serve_ranks.py \
	  build/release/strata models/tiny-qwen3 $(or $(RANKS),2) $$kind; done

# Every tools/check/check_*.py: layers, sizes, documents. They read the tree and write nothing.
checks:
	@for check in tools/check/check_*.py; do [ ! -e "$$check" ] || python3 "$$check"; done
	@python3 tools/check/check_layers.py --self-test
	@python3 tools/check/check_docs.py --self-test
	@python3 tools/check/check_python_imports.py --self-test
	@python3 bench/peers/run.py --self-test

asan tsan:
	@tools/install.sh clang
	@tools/fetch_xgrammar.sh
	@cmake --preset $@ --log-level=WARNING
	@cmake --build build/$@ -j $(JOBS)
	@env $(SANITIZER_OPTIONS) ctest --test-dir build/$@ -j2 -LE slow --output-on-failure --no-tests=error

# Runs every fuzz target for FUZZ_SECONDS (60) from its kept corpus in tests/fuzz/corpus/<target>.
fuzz:
	@tools/install.sh clang
	@tools/fetch_xgrammar.sh
	@cmake --preset fuzz --log-level=WARNING
	@cmake --build build/fuzz -j $(JOBS)
	@for target in build/fuzz/tests/fuzz/*_fuzz; do \
	  name=$$(basename "$$target" _fuzz); found=build/fuzz/found/$$name; \
	  kept=tests/fuzz/corpus/$$name; mkdir -p "$$found"; [ -d "$$kept" ] || kept=; \
	  echo "fuzz: $$name, $(FUZZ_SECONDS) s"; \
	  env $(SANITIZER_OPTIONS) "$$target" -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
	    -artifact_prefix="$$found/" "$$found" $$kept 2>&1 | grep -E 'ERROR|SUMMARY|stat::|artifact|BINGO' ; \
	done

tidy:
	@tools/install.sh clang
	@tools/fetch_xgrammar.sh
	@$(CMAKE) -B build/tidy $(CLANG)
	@git ls-files -z 'src/*.cc' | xargs -0 -n 8 -P $(JOBS) clang-tidy-19 -p build/tidy --quiet

format:
	@tools/install.sh format
	@$(FORMATTED) | xargs -0 -r clang-format-19 -i

format-check:
	@tools/install.sh format
	@$(FORMATTED) | xargs -0 -r clang-format-19 --dry-run -Werror

run: build
	@tools/install.sh sdk
	@tools/run/run_served.sh build/release/strata

run-train: build
	@tools/run/run_tiny.sh build/release/strata

# The protocol's acceptance list and a tour with each of SDKS: four versions unless told otherwise.
e2e: build
	@tools/install.sh sdk
	@tools/run/e2e.sh build/release/strata $(SDKS)

# Further clients of OpenAI's API, litellm and llm, in an environment of their own (about 300 MB).
e2e-clients: build
	@build/clients/bin/python -c "import agents" 2> /dev/null || { python3 -m venv --clear build/clients && \
	  build/clients/bin/pip install --quiet --disable-pip-version-check -r tools/requirements/openai_clients.txt; }
	@build/clients/bin/python tests/e2e/openai_clients.py build/release/strata models/tiny-qwen3

# Frozen processes, full and failing disks, killed databases, clocks that jump, long queues: over and over for CHAOS_SECONDS; 0: once.
chaos: build
	@tools/install.sh sdk
	@tools/install.sh test
	@"$$(tools/run/sdk_python.sh)" tests/e2e/chaos.py build/release/strata models/tiny-qwen3 $(CHAOS_SECONDS)

# Hostile requests (also mixed, for MIXED_SECONDS), memory, kill -9 under load, and LOAD_SECONDS of load (tools/load.sh has the bars of a quiet machine).
robust: build
	@tools/install.sh sdk
	@tools/install.sh test
	@tools/run/robust.sh build/release/strata $(KILLS) $(MIXED_SECONDS)
	@$(CMAKE) -B build/release -DCMAKE_CXX_COMPILER=g++ -DSTRATA_BENCH=ON
	@cmake --build build/release --target load_bench -j $(JOBS)
	@tools/load.sh build/release/strata build/release/bench/load_bench $(LOAD_SECONDS)

# 10,000 tenants, 200 of them busy and two hostile, for TENANTS_SECONDS.
many-tenants: build
	@tools/install.sh sdk
	@tools/run/many_tenants.sh build/release/strata $(TENANTS_SECONDS)

# Recipes of the tinker-cookbook, unmodified and offline: all of tools/run/cookbook.sh, or RECIPES.
cookbook: build
	@tools/install.sh sdk
	@tools/run/cookbook.sh build/release/strata $(RECIPES)

# The live page in headless Chromium; PICTURES=docs makes the pictures of docs/ again.
page: build
	@tools/install.sh browser
	@tools/run/page.sh build/release/strata $(PICTURES)
	@[ "$(PICTURES)" != docs ] || python3 tools/check/check_pictures.py --keep

# Every command of the README and of the pages for users.
documents: build
	@tools/install.sh sdk
	@"$$(tools/run/sdk_python.sh)" tests/e2e/documents.py build/release/strata

# Answers of the bundled model to many schemas, held against the jsonschema package.
json-schemas: build
	@tools/install.sh sdk
	@[ -x build/jsonschema/bin/python ] || { python3 -m venv --clear build/jsonschema && \
	  build/jsonschema/bin/pip install --quiet --disable-pip-version-check -r tools/requirements/jsonschema.txt; }
	@build/jsonschema/bin/python tests/e2e/json_schemas.py build/release/strata models/tiny-qwen3
	@build/jsonschema/bin/python tests/e2e/served_schemas.py build/release/strata models/tiny-qwen3

# What --tensorboard writes, read back by TensorBoard's own package.
events: build
	@tools/install.sh sdk
	@[ -x build/events/bin/tensorboard ] || { python3 -m venv --clear build/events && \
	  build/events/bin/pip install --quiet --disable-pip-version-check -r tools/requirements/events.txt; }
	@build/events/bin/python tests/e2e/events.py build/release/strata

# dist: a .deb, a tarball and a wheel; packages-test installs, runs and purges each in a Debian of its own (as root).
package: build
	@tools/install.sh package
	@cmake --build build/release -j $(JOBS)
	@[ -x build/auditwheel/bin/auditwheel ] || { python3 -m venv --clear build/auditwheel && \
	  build/auditwheel/bin/pip install --quiet --disable-pip-version-check -r tools/requirements/package.txt; }
	@rm -rf dist
	@PATH="$$PWD/build/auditwheel/bin:$$PATH" tools/package/make_packages.sh build/release dist

packages-test: package
	@tools/package/packages_test.sh dist build/roots

# The program built and tried in a root of another Debian or Ubuntu (as root): SUITE=trixie is Debian 13; TESTS=tests for the fast suite.
build-on:
	@tools/install.sh package
	@JOBS=$(JOBS) tools/package/build_on.sh $(SUITE) build/roots $(TESTS)

run-smollm2: build
	@tools/install.sh smollm2
	@tools/run/run_smollm2.sh build/release/strata

# MODELS random models of every family (200) from SEED on (the time) beside transformers and PEFT, in half an hour.
random-models: build
	@tools/install.sh sdk
	@tools/run/random_models.sh build/release/strata --count $(MODELS) --seed $(SEED) --jobs $(JOBS)

# Logits, text and tokens of GGUF files beside llama.cpp, which pip compiles once.
compare-llama-cpp: build
	@tools/run/compare_llama_cpp.sh build/release/strata

llama-cpp: build
	@tools/run/llama_cpp.sh build/release/strata

# Strata and its peers in turn, an hour on two quiet cores: docs/peers.md and docs/speed.svg. PEERS="--only decode1 --rounds 3" for
# some of it; the peers are installed into build/peers once (12 GB).
peers: build
	@tools/install.sh peers
	@bench/peers/install.sh
	@python3 bench/peers/run.py build/release/strata $(PEERS)

tiny-qwen3: build
	@tools/run/pretrain_tiny.sh build/release/strata

# What drafts of a Qwen3.5's own layer save, on a model that is trained for it: half an hour on two cores; MTP_SIZE=small: some minutes.
mtp-demo: build
	@tools/run/mtp_demo.sh build/release/strata $(MTP_SIZE)

clean:
	rm -rf build
