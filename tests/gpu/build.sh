#!/usr/bin/env bash
# Builds what tests/gpu/run.sh needs on a machine with a GPU and without Rust: stripped x86-64 programs in target/gpu (or the folder given).
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-target/gpu}
mkdir -p "$out"
# The path of a program that cargo built, by the name of its target.
built() {
    cargo "$@" --message-format=json | grep -o '"executable":"[^"]*"' | tail -n 1 | cut -d '"' -f 4
}
for test in cuda tfrecord_gpu parquet_gpu; do cp "$(built test --release --no-run --test "$test")" "$out/$test"; done
cp "$(built bench --no-run --bench gpu)" "$out/bench"
programs=("$out/cuda" "$out/tfrecord_gpu" "$out/parquet_gpu" "$out/bench")
strip "${programs[@]}"
du -ch "${programs[@]}" | tail -n 1
