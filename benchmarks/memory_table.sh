#!/usr/bin/env bash
# What slots cost: `pipetrain plan` for every --recompute and --defer, as a table in Markdown in OUT
# (default: benchmarks/results/memory.md). Predicted; the tests hold the bytes against those in use.
#   MODEL=gpt2-124m RANKS=8 MICROBATCHES=16 SCHEDULES="1f1b zb-h1 zb-v v-half"
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch/common.sh"
cd "$top"

preset=${PRESET:-host}
model=${MODEL:-gpt2-124m}
ranks=${RANKS:-8}
microbatches=${MICROBATCHES:-16}
out=${OUT:-benchmarks/results/memory.md}
program=${PROGRAM:-build/$preset/pipetrain}
[ -x "$program" ] || build "$preset" pipetrain
table=$(mktemp)
trap 'rm -f "$table"' EXIT

# A row of one plan: activation and gradient slots of every rank in MB.
row() {
  awk -v name="$1" '
    function number() { sub(/^[^:]*: */, ""); return $0 + 0 }
    /"makespan":/ { step = number() }
    /"activation_slots":/ { slots = number() }
    /"gradient_slots":/ { slots += number(); most = slots > most ? slots : most; list = list sprintf(" %.0f", slots / 1e6) }
    /"workspace":/ { if (workspace == "") workspace = number() }
    END { printf "| %s | %.2f | %.0f |%s | %.0f |\n", name, step, most / 1e6, list, workspace / 1e6 }'
}

{
  echo "# What slots cost"
  echo
  echo "$model, p = $ranks, m = $microbatches micro-batches of one sequence, bf16; \`pipetrain plan\`, step on an H100 with NVLink."
  echo "Slots: activations, F to B or W, and gradients, I to W; MB (10^6 bytes) at the peak of a rank."
  echo
  echo "| schedule | recompute | defer | step ms | most | slots of ranks 0 to $((ranks - 1)) | workspace of rank 0 |"
  echo "|---|---|---|---|---|---|---|"
  for recompute in none attention full; do
    for defer in all cheap; do
      for schedule in ${SCHEDULES:-1f1b zb-h1 zb-v v-half}; do
        "$program" plan --schedule "$schedule" --ranks "$ranks" --microbatches "$microbatches" \
          --model "$model" --recompute "$recompute" --defer "$defer" --format json 2>/dev/null |
          row "$schedule | $recompute | $defer"
      done
    done
  done
} >"$table"
cp "$table" "$out"
cat "$out"
