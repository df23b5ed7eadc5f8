#!/usr/bin/env bash
# Everything that layertap's cost on a GPU is judged by, in some minutes: first whether it is right, then what it takes.
#
#     bash benchmarks/gpu_cost.sh [OUT]
#
# From the repository's root, with torch, triton and transformers; nothing is installed. OUT is where the logs go.
set -uo pipefail
out=${1:-$(mktemp -d)}
export PYTHONPATH=src PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
flags="-std=gnu11 -O3 -ffp-contract=off -shared -fPIC"
for source in onepass pair; do
    # shellcheck disable=SC2086
    "${CC:-cc}" $flags -o "src/layertap/measure/_$source.so" "src/layertap/measure/$source.c" -lm 2>/dev/null ||
        echo "no C compiler: $source is done by torch, so small tensors take longer"
done
step() {
    local seconds=$1 name=$2
    shift 2
    echo "=== $name ($(date -u +%H:%M:%S))"
    timeout "$seconds" "$@" 2>&1 | tee "$out/$name.log" | tail -n 60
    echo "=== $name: exit ${PIPESTATUS[0]}"
}
step 150 kernel python3 benchmarks/gpu_kernel.py
step 150 decode python3 benchmarks/gpu_decode.py decode
step 100 prefill python3 benchmarks/gpu_decode.py prefill
step 40 profile python3 benchmarks/gpu_decode.py profile
step 60 overhead python3 benchmarks/overhead.py
step 80 forward python3 benchmarks/gpu.py --forward
