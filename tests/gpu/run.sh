#!/usr/bin/env bash
# The tests and benches of the CUDA path on a real GPU: prebuilt programs, each test in a process of its own with a time limit.
#
#   tests/gpu/build.sh                 # once, with Rust, on any x86-64 machine: target/gpu
#   tests/gpu/run.sh [FOLDER] [PART…]  # FOLDER has the programs (default target/gpu), and gets results.jsonl, bench.jsonl and table.md
#
# Parts, in their order: environment modules kernels tests sanitizer benches (default: all). What has a result already is not run again, so a
# run that was cut off goes on where it was; remove results.jsonl to begin anew. Ends with 1 if a test failed or was not run, be it that its
# time or that of all was over, or that a tool is not there; how many were not run stands below the table. GPU_RUN_SECONDS (default 480) bounds
# all of it. GPU_RUN_PREFIX is put before each program: with tests/software-cuda/run it can be tried without a GPU.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/../../target/gpu}
shift || true
folder=$(cd "$folder" && pwd) || exit 2
parts=("$@")
[ "${#parts[@]}" -gt 0 ] || parts=(environment modules kernels tests sanitizer benches)
results=$folder/results.jsonl
end=$((SECONDS + ${GPU_RUN_SECONDS:-480}))
touch "$results"
# What was not run is looked at anew.
sed -i '/"status":"not run"/d' "$results"
read -r -a prefix <<<"${GPU_RUN_PREFIX:-}"
export FEEDWATER_REAL_GPU=${FEEDWATER_REAL_GPU-1}

# note PART NAME STATUS SECONDS
note() {
    printf '{"part":"%s","name":"%s","status":"%s","seconds":%s}\n' "$1" "$2" "$3" "$4" >>"$results"
    echo "$1 $2: $3 (${4} s)"
}

# one PART NAME SECONDS COMMAND…: runs it unless it has a result, within its time and what is left of all.
one() {
    local part=$1 name=$2 limit=$3 left=$((end - SECONDS)) begun=$SECONDS status
    shift 3
    ! grep -qF "\"part\":\"$part\",\"name\":\"$name\"" "$results" || return 0
    [ "$left" -gt 5 ] || { note "$part" "$name" "not run" 0; return 0; }
    [ "$limit" -lt "$left" ] || limit=$left
    timeout --kill-after=5 "$limit" "$@" >"$folder/last.txt" 2>&1
    status=$?
    case $status in
    0) note "$part" "$name" ok $((SECONDS - begun)) ;;
    124 | 137) note "$part" "$name" "not done after $limit s" $((SECONDS - begun)) ;;
    *) note "$part" "$name" "failed with $status" $((SECONDS - begun)) ;;
    esac
    [ "$status" -eq 0 ] || { tail -n 20 "$folder/last.txt"; cp "$folder/last.txt" "$folder/failed-$part-${name//[^a-zA-Z0-9_]/-}.txt"; }
    return 0
}

# The programs of tests that are there, and the names in one of them.
programs=()
for program in cuda tfrecord_gpu parquet_gpu; do [ ! -x "$folder/$program" ] || programs+=("$program"); done
[ "${#programs[@]}" -gt 0 ] || { echo "$folder has no programs"; exit 2; }
for program in "${programs[@]}"; do
    # One that cannot be started names no tests.
    "${prefix[@]}" "$folder/$program" --list 2>/dev/null | grep -q ': test$' || note programs "$program" "not run" 0
done
# What needs the examples, or Rust to build them, is left out.
tests() { "${prefix[@]}" "$folder/$1" --list 2>/dev/null | sed -n 's/: test$//p' | grep -E "$2" | grep -vE '^(examples::|same_files::the_same)' | grep -vE "${3:-^$}"; }

# each PART SECONDS PATTERN [NOT]: the tests of all programs with such names, each in a process of its own.
each() {
    local program name
    for program in "${programs[@]}"; do
        for name in $(tests "$program" "$3" "${4:-}"); do
            one "$1" "$program $name" "$2" "${prefix[@]}" "$folder/$program" --exact "$name"
        done
    done
}

# Modules of tests of kernels by themselves.
kernels='kernels|columns|delta|delta_rows|delta_strings|nesting|marks|few_blocks|decompress|select'
# Modules of tests of what kernels share: memory that is used again, copies, streams.
shared='hostile|kept|staged|lanes|waits'
# What sanitizers look at: all of some modules, and of others what is quick.
looked_at="^(kernels|delta_rows|marks|few_blocks|select|$shared)::"
looked_at+='|^(columns|columns::strings|delta|delta_strings|nesting)::(all_lengths|what_is_wrong)|^decompress::(lanes|matches|lengths)'

for part in "${parts[@]}"; do
    case $part in
    environment)
        one environment nvidia-smi 20 nvidia-smi
        [ ! -e "$folder/last.txt" ] || cp "$folder/last.txt" "$folder/environment.txt"
        ;;
    modules) each modules 60 '^modules::' ;;
    kernels) each kernels 60 "^($kernels|$shared)::" ;;
    tests) each tests 60 . "^(modules|$kernels|$shared)::" ;;
    sanitizer)
        if ! command -v compute-sanitizer >/dev/null; then
            echo "sanitizer: compute-sanitizer is not installed"
            note sanitizer compute-sanitizer "not run" 0
            continue
        fi
        for tool in memcheck racecheck initcheck synccheck; do
            options=(--tool "$tool" --error-exitcode 9)
            # Errors of calls are what some tests ask for.
            [ "$tool" != memcheck ] || options+=(--report-api-errors no)
            for program in "${programs[@]}"; do
                for name in $(tests "$program" "$looked_at" 'past_four'); do
                    one "$tool" "$program $name" 90 compute-sanitizer "${options[@]}" "$folder/$program" --exact "$name"
                done
            done
        done
        ;;
    benches)
        export FEEDWATER_BENCH_JSON=$folder/bench.jsonl
        one benches gpu 240 "${prefix[@]}" "$folder/bench" --bench
        if grep -qF '"part":"benches","name":"gpu","status":"ok"' "$results" && [ -e "$folder/last.txt" ] && grep -q '^| work' "$folder/last.txt"; then
            cp "$folder/last.txt" "$folder/bench.txt"
        fi
        ;;
    *)
        echo "unknown part: $part"
        exit 2
        ;;
    esac
done

not_run=$(grep -cF '"status":"not run"' "$results")
{
    echo "| part | test | result | seconds |"
    echo "|---|---|---|---:|"
    sed -E 's/\{"part":"([^"]*)","name":"([^"]*)","status":"([^"]*)","seconds":([0-9]*)\}/| \1 | \2 | \3 | \4 |/' "$results"
    echo
    echo "$(wc -l <"$results") results, of which $not_run are of what was not run."
    if [ -e "$folder/bench.txt" ]; then
        echo
        cat "$folder/bench.txt"
    fi
} >"$folder/table.md"
cat "$folder/table.md"
! grep -v '"part":"environment"' "$results" | grep -qE '"status":"(failed|not done|not run)'
