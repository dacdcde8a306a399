#!/usr/bin/env bash
# Builds llama.cpp with CUDA, tests and measures llamalane on this machine's GPU, and writes JSON files and a table.
#
# Needs nvcc, cmake, a C++ compiler, Python 3.11 or newer, and no network: llama-cpp-python's sources and the wheels
# come from folders. Every part takes at most 8 minutes and leaves a mark when it is done; the same command goes on
# where an earlier one stopped, so a part that runs out of time (code 75) is simply run again.
set -euo pipefail

usage() {
    cat <<'TEXT'
bench/gpu/run.sh --llama FOLDER --wheels FOLDER [options]
  --llama FOLDER   unpacked sources of llama-cpp-python, with vendor/llama.cpp in them
  --wheels FOLDER  wheels of what the tests need, for this Python (docs/gpu.md says how to get them)
  --work FOLDER    where it is built, and where results go (gpu-work)
  --arch NUMBER    the GPU's architecture, such as 90 (asked of nvidia-smi)
  --sizes LIST     synthetic models: 1b, 7b or both (1b,7b)
  --types LIST     their weights: q4_k, f16 or both (q4_k,f16)
  --jobs N         compilers at once (all cores)
  --part NAME      only this part: environment, configure, build, models, tests, costs, priorities, throughput, table
  --dry-run        print the steps instead of running them
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
llama='' wheels='' work=gpu-work arch='' sizes=1b,7b types=q4_k,f16 jobs='' only='' dry=''
limit=480
out_of_time=75

while [ $# -gt 0 ]; do
    case $1 in
        --dry-run) dry=yes; shift; continue ;;
        -h | --help) usage; exit 0 ;;
        --llama | --wheels | --work | --arch | --sizes | --types | --jobs | --part) ;;
        *) echo "unknown option $1" >&2; usage >&2; exit 2 ;;
    esac
    [ $# -ge 2 ] || { echo "$1 needs a value" >&2; exit 2; }
    case $1 in
        --llama) llama=$2 ;;
        --wheels) wheels=$2 ;;
        --work) work=$2 ;;
        --arch) arch=$2 ;;
        --sizes) sizes=$2 ;;
        --types) types=$2 ;;
        --jobs) jobs=$2 ;;
        --part) only=$2 ;;
    esac
    shift 2
done
if [ -z "$llama" ] || [ -z "$wheels" ]; then
    echo "name --llama and --wheels" >&2
    usage >&2
    exit 2
fi
case $only in
    '' | environment | configure | build | models | tests | costs | priorities | throughput | table) ;;
    *) echo "there is no part $only" >&2; exit 2 ;;
esac
if [ -z "$dry" ]; then
    [ -d "$llama/vendor/llama.cpp" ] || { echo "$llama holds no vendor/llama.cpp" >&2; exit 2; }
    [ -d "$wheels" ] || { echo "there is no folder $wheels" >&2; exit 2; }
    mkdir -p "$work/done" "$work/models" "$work/results"
    llama=$(cd "$llama" && pwd) wheels=$(cd "$wheels" && pwd) work=$(cd "$work" && pwd)
fi
[ -n "$jobs" ] || jobs=$(getconf _NPROCESSORS_ONLN)

python=$work/venv/bin/python
results=$work/results
vendor=$llama/vendor/llama.cpp
server=$work/build/bin/llama-server

# Run one step, unless it is done: its name, then its command.
step() {
    local name=$1
    shift
    if [ -n "$dry" ]; then
        echo "[$name] $*"
        return
    fi
    [ ! -e "$work/done/$name" ] || return 0
    echo "== $name"
    local code=0
    timeout "$limit" "$@" || code=$?
    if [ "$code" = 124 ]; then
        echo "$name is not finished after $limit s: run the same command again" >&2
        exit "$out_of_time"
    fi
    [ "$code" = 0 ] || { echo "$name failed with code $code" >&2; exit "$code"; }
    touch "$work/done/$name"
}

# A measurement: what it prints goes into the table.
measure() {
    local name=$1
    shift
    # shellcheck disable=SC2016  # the inner shell expands it
    step "$name" bash -c 'set -o pipefail; "$@" | tee "$0"' "$results/$name.md" "$@" --json "$results/$name.json"
}

wanted() { [ -z "$only" ] || [ "$only" = "$1" ]; }

if [ -z "$arch" ] && [ -z "$dry" ]; then
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
fi
# llama-cpp-python's own files are used as they are; its library is the one that is built here.
export PYTHONPATH=$root/src:$llama LLAMA_CPP_LIB_PATH=$work/build/bin
IFS=, read -r -a all_sizes <<< "$sizes"
IFS=, read -r -a all_types <<< "$types"

if wanted environment; then
    step venv python3 -m venv "$work/venv"
    step wheels "$python" -m pip install --quiet --no-index --find-links "$wheels" -r "$root/bench/gpu/requirements.txt"
    step shim "${CC:-cc}" -O2 -fPIC -shared -o "$root/streams/cuda/_lend.abi3.so" "$root/streams/cuda/lend.c" -ldl -lpthread
fi
if wanted configure; then
    step configure cmake -S "$vendor" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON \
        "-DCMAKE_CUDA_ARCHITECTURES=${arch:-native}" -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
        -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF
fi
if wanted build; then
    step build cmake --build "$work/build" --parallel "$jobs" --target llama mtmd llama-server
fi
for size in "${all_sizes[@]}"; do
    for type in "${all_types[@]}"; do
        model=$work/models/$size-$type.gguf
        gpu=("$python" -m llamalane.bench.gpu)
        if wanted models; then
            step "model-$size-$type" "${gpu[@]}" synthetic "$model" --size "$size" --type "$type"
        fi
        if wanted tests; then
            step "tests-$size-$type" env "GPU_TEST_MODEL=$model" "$python" -m pytest -q -m gpu \
                "--junitxml=$results/tests-$size-$type.xml" "$root/tests/streams/cuda" -p no:cacheprovider
        fi
        if wanted costs; then
            measure "costs-$size-$type" "${gpu[@]}" costs "$model"
        fi
        if wanted priorities; then
            measure "priorities-$size-$type" "${gpu[@]}" priorities "$model"
            measure "priorities-no-graphs-$size-$type" env GGML_CUDA_DISABLE_GRAPHS=1 "${gpu[@]}" priorities "$model"
        fi
        if wanted throughput; then
            measure "throughput-$size-$type" "${gpu[@]}" throughput "$server" "$model"
        fi
    done
done
if wanted table; then
    # shellcheck disable=SC2016  # the inner shell expands it
    step doctor bash -c '"$1" -m llamalane doctor --json > "$0"' "$results/doctor.json" "$python"
    if [ -n "$dry" ]; then
        echo "[table] $results/table.md"
    else
        for file in "$results"/*-*.md; do
            printf '## %s\n\n%s\n\n' "$(basename "$file" .md)" "$(cat "$file")"
        done > "$results/table.md"
        cat "$results/table.md"
    fi
fi
