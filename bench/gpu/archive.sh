#!/usr/bin/env bash
# Packs what bench/gpu/run.sh needs on a machine without a network: this source tree, and of llama-cpp-python's sources
# and the wheels what a build with CUDA takes. The archive unpacks to llamalane/, llama-cpp-python/ and wheels/.
set -euo pipefail

usage() {
    cat <<'TEXT'
bench/gpu/archive.sh --llama PATH --wheels FOLDER [--output FILE] [--limit MEGABYTES] [--dry-run]
  --llama PATH     llama-cpp-python's source archive (.tar.gz), or the folder that it unpacks to
  --wheels FOLDER  wheels, as pip download has put them
  --output FILE    what is written (llamalane-gpu.tar.xz)
  --limit N        a larger archive is an error (40)
  --dry-run        print the steps instead of running them
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
llama='' wheels='' output=llamalane-gpu.tar.xz limit=40 dry=''
while [ $# -gt 0 ]; do
    case $1 in
        --dry-run) dry=yes; shift; continue ;;
        -h | --help) usage; exit 0 ;;
        --llama | --wheels | --output | --limit) ;;
        *) echo "unknown option $1" >&2; usage >&2; exit 2 ;;
    esac
    [ $# -ge 2 ] || { echo "$1 needs a value" >&2; exit 2; }
    case $1 in
        --llama) llama=$2 ;;
        --wheels) wheels=$2 ;;
        --output) output=$2 ;;
        --limit) limit=$2 ;;
    esac
    shift 2
done
if [ -z "$llama" ] || [ -z "$wheels" ]; then
    echo "name --llama and --wheels" >&2
    usage >&2
    exit 2
fi
if [ -n "$dry" ]; then
    echo "copy what git knows of $root to llamalane/"
    echo "copy $llama to llama-cpp-python/, without other backends, documents and tests"
    echo "copy the wheels in $wheels to wheels/, stored without compression"
    echo "pack the three into $output, $limit MB at most"
    exit 0
fi

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/llamalane" "$stage/llama-cpp-python" "$stage/wheels"

git -C "$root" ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' name; do
        if [ -e "$root/$name" ] || [ -L "$root/$name" ]; then printf '%s\0' "$name"; fi
    done |
    tar -C "$root" --null -T - -cf - | tar -C "$stage/llamalane" -xf -

# Of llama.cpp, other backends, the web page, documents, and vocabularies to test with are left behind.
exclusions=('--exclude=*/.git' '--exclude=*/llama_cpp/lib')
for name in .github .devops docs media models benches examples pocs conversion gguf-py requirements skills ci tests \
    scripts/snapdragon tools/server/tests tools/server/bench 'tools/ui/*/*'; do
    exclusions+=("--exclude=*/vendor/llama.cpp/$name")
done
for name in blas cann et hexagon hip metal musa opencl openvino rpc sycl virtgpu vulkan webgpu zdnn zendnn; do
    exclusions+=("--exclude=*/ggml/src/ggml-$name/*")
done
if [ -d "$llama" ]; then
    llama=$(cd "$llama" && pwd)
    tar -C "$(dirname "$llama")" "${exclusions[@]}" -cf - "$(basename "$llama")" |
        tar -C "$stage/llama-cpp-python" --strip-components=1 -xf -
else
    tar -C "$stage/llama-cpp-python" --strip-components=1 "${exclusions[@]}" -xf "$llama"
fi

# Wheels are compressed file by file; stored without that, they are smaller in the end.
"${PYTHON:-python3}" - "$wheels" "$stage/wheels" <<'PYTHON'
import sys, zipfile
from pathlib import Path

source, target = map(Path, sys.argv[1:])
for wheel in sorted(source.glob("*.whl")):
    with zipfile.ZipFile(wheel) as packed, zipfile.ZipFile(target / wheel.name, "w", zipfile.ZIP_STORED) as stored:
        for entry in packed.infolist():
            stored.writestr(entry.filename, packed.read(entry))
PYTHON

tar -C "$stage" -cf "$stage/archive.tar" llamalane llama-cpp-python wheels
xz -T0 "$stage/archive.tar"
size=$(($(wc -c < "$stage/archive.tar.xz") / 1000000))
[ "$size" -le "$limit" ] || { echo "the archive has $size MB, more than $limit" >&2; exit 1; }
mv "$stage/archive.tar.xz" "$output"
echo "$output: $size MB"
