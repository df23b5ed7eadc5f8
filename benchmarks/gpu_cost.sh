#!/usr/bin/env bash
# Everything that layertap's cost on a GPU is judged by, the most important first, each step within its own time.
#
#     bash benchmarks/gpu_cost.sh [OUT [STEP ...]]
#
# From the repository's root, with torch, triton and transformers; nothing is installed. OUT is where the logs go; steps
# are check, decode, prefill, fault, forward, kernel, training, overhead, pair, profile, and all but the last two by default.
set -uo pipefail
out=${1:-$(mktemp -d)}
steps=" ${*:2} "
export PYTHONPATH=src PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
for source in onepass pair signs parts; do
    "${CC:-cc}" -std=gnu11 -O3 -ffp-contract=off -shared -fPIC -w -lm \
        -o "src/layertap/measure/_$source.so" "src/layertap/measure/$source.c" 2>"$out/$source.txt" ||
        echo "no C compiler: $source is done by torch, so small tensors take longer"
done
"${CC:-cc}" -std=gnu11 -O3 -shared -fPIC -w "-I$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["include"])')" \
    -o src/layertap/capture/_tap.abi3.so src/layertap/capture/tap.c 2>"$out/tap.txt" ||
    echo "tap.c was not compiled: all goes the long way"
step() {
    local seconds=$1 name=$2
    shift 2
    [[ $steps == "  " && $name != profile && $name != pair ]] || [[ $steps == *" $name "* ]] || return 0
    echo "=== $name ($(date -u +%H:%M:%S))"
    timeout "$seconds" "$@" 2>&1 | tee "$out/$name.log" | tail -n 60
    echo "=== $name: exit ${PIPESTATUS[0]}"
}
step 60 check python3 benchmarks/gpu_decode.py check
step 150 decode python3 benchmarks/gpu_decode.py decode --rounds 2
step 60 prefill python3 benchmarks/gpu_decode.py prefill
step 150 fault python3 benchmarks/gpu_fault.py --rounds 3
step 60 forward python3 benchmarks/gpu.py --forward
step 90 kernel python3 benchmarks/gpu_kernel.py --table
step 90 training python3 benchmarks/gpu_training.py
step 60 overhead python3 benchmarks/overhead.py
step 200 pair python3 benchmarks/gpu_pair.py
step 60 profile python3 benchmarks/gpu_decode.py profile
