#!/usr/bin/env bash
# Checks this GPU host: builds the cuda flavour, runs its tests and the emulator's conformance tests
# against real CUDA, cuBLASLt and NCCL, compares several NCCL ranks with one, and measures
# throughput. Prints a table in Markdown and writes it to OUT (default: build/gpu_check.md; in a
# directory: gpu_check.md), and what failed beside it.
#   INSTALL=no       nothing is installed
#   BUILD=no         what is built already is used
#   PARTS="bits"     of "bits throughput tests"
#   TEST_TIME=900    seconds for all tests together, which are killed then
#   PRESET=host      rehearses the script on the emulator
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$top"

preset=${PRESET:-cuda}
out=${OUT:-build/gpu_check.md}
[ ! -d "$out" ] || out=$out/gpu_check.md
parts=${PARTS:-bits throughput tests}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

gpus=$(nvidia-smi -L 2>/dev/null | wc -l || true)
# Without a GPU the tests skip themselves, which must not be called passed.
if [ "$preset" = cuda ] && [ "$gpus" -eq 0 ]; then
  echo "no GPU was found (nvidia-smi -L); PRESET=host rehearses this script without one" >&2
  exit 1
fi
[ "${INSTALL:-yes}" = no ] || install_packages
[ "${BUILD:-yes}" = no ] || build "$preset"
program=build/$preset/pipetrain
mkdir -p "$(dirname "$out")"
rm -f "${out%.md}.log"

has() { [[ " $parts " == *" $1 "* ]]; }
row() { printf '| %s | %s |\n' "$1" "$2" >>"$out"; }
check() {  # check NAME COMMAND...
  local name=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    row "$name" "passed"
  else
    row "$name" "FAILED"
    failed=1
    { echo "==== $name" && cat "$work/log"; } >>"${out%.md}.log"
    tail -n 20 "$work/log" >&2
  fi
}

{
  echo "# $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null |
    sort | uniq -c | sed 's/^ *//' || echo "host flavour")"
  echo
  echo "pipetrain $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $("$program" --version)," \
    "$(date -u +%Y-%m-%d)"
  echo
  echo '| check | result |'
  echo '|---|---|'
} >"$out"

# ---- several NCCL ranks, on as many GPUs as there are
fixture=tests/data/gpt2_l8_c32
nccl_ranks() {  # nccl_ranks N ARGUMENTS...
  local ranks=$1
  shift
  run_ranks "$ranks" "$program" train --init "$fixture" \
    --data "$fixture/tokens.bin" --shuffle off --steps 10 --microbatches "${microbatches:-8}" \
    --microbatch-size 2 --learning-rate 1e-3 --timeout 120 "$@"
}
losses() { grep -o '"loss":[^,]*' "$1/metrics.jsonl"; }
same_as_one() {  # same_as_one NAME
  diff <(losses "$work/one") <(losses "$work/$1") && cmp "$work/one.grad" "$work/$1.grad"
}
spread() {  # spread NAME RANKS ARGUMENTS...
  local name=$1 ranks=$2
  shift 2
  nccl_ranks "$ranks" --run-dir "$work/$name" --dump-gradients "$work/$name.grad" "$@" &&
    same_as_one "$name"
}
replicas() {  # replicas ARGUMENTS...: the same batch on two stages of two replicas
  local microbatches=4
  nccl_ranks 4 --data-parallel 2 --zero 1 "$@"
}
if has bits; then
  for precision in fp32 bf16; do
    rm -rf "$work"/*
    check "$precision: one rank trains" nccl_ranks 1 --precision $precision --run-dir "$work/one" \
      --dump-gradients "$work/one.grad"
    check "$precision: 1f1b on 2 ranks, the bits of one" spread two 2 --precision $precision
    check "$precision: interleaved on 2 x 2 chunks, the bits of one" spread chunks 2 \
      --precision $precision --schedule interleaved --chunks 2
    check "$precision: 1f1b on 4 ranks, the bits of one" spread four 4 --precision $precision
    check "$precision: zb-v on 4 ranks, the bits of one" spread zbv 4 --precision $precision \
      --schedule zb-v
    check "$precision: dualpipe-v on 2 ranks, the bits of one" spread pairs 2 \
      --precision $precision --schedule dualpipe-v
    check "$precision: 1f1b on 2 stages of 2 replicas trains" replicas --precision $precision \
      --run-dir "$work/replicas"
  done
fi

# ---- throughput; on the host flavour a model that a CPU can train
throughput() {  # throughput RANKS ARGUMENTS...
  local ranks=$1
  shift
  rm -rf "$work/speed"
  run_ranks "$ranks" "$program" train --data "$work/bytes" --steps 12 --timeout 300 \
    --run-dir "$work/speed" "$@" >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2 && return 1; }
  # The median step.
  grep -o '"tokens_per_second":[^,]*,"mfu":[^,]*' "$work/speed/metrics.jsonl" | tail -n 8 |
    sort -t: -k2 -g | sed -n 4p
}
head -c 4000000 /dev/urandom >"$work/bytes"
ranks=$((gpus > 0 ? gpus : 1))
if has throughput && [ "$preset" = cuda ]; then
  for model in gpt2-124m gpt2-350m gpt2-774m; do
    row "$model, bf16, 1f1b on $ranks GPU(s), micro-batches of 8 x 1024" \
      "$(throughput "$ranks" --model $model --precision bf16 --microbatches $((4 * ranks)) \
        --microbatch-size 8 --vocab-size 50257 || echo FAILED)"
  done
elif has throughput; then
  row "4 layers, width 64, fp32, 1 rank" "$(throughput 1 --layers 4 --hidden 64 --heads 4 \
    --sequence-length 64 --microbatches 8 --microbatch-size 4 || echo FAILED)"
fi

# ---- the tests last: they take longest. Ranks that are threads of one process cannot be told to
# share a GPU.
threads='^$'
[ "$preset" = host ] || [ "$gpus" -ge 8 ] || threads='Rings|Channel\.|Communicator'
if has tests; then
  check "tests$([ "$threads" = '^$' ] || echo ', without NCCL ranks as threads')" \
    env OPENBLAS_NUM_THREADS=1 timeout "${TEST_TIME:-900}" ctest --test-dir "build/$preset" \
    -LE 'sweep|shared' -E "$threads" -j "$((($(nproc) + 1) / 2))" --timeout 300 --output-on-failure
fi

grep -q FAILED "$out" && failed=1
cat "$out"
exit $failed
