#!/usr/bin/env bash
# Runs every schedule on synthetic stages with `pipetrain bench` and writes a table in Markdown,
# planned beside measured, to OUT (default: benchmarks/results/<preset>.md).
#   benchmarks/bench_table.sh [FLAGS OF bench]     SCHEDULES="1f1b zb-v" for some of them alone
#   PRESET=cuda       default: host
#   RANKS=8 MICROBATCHES=16 TIME=50 LATENCY="0 20" REPEAT=5      times in milliseconds
#   PRIORITY="chrt -f 10"    a command that starts every rank, where other work disturbs it
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch/common.sh"
cd "$top"

preset=${PRESET:-host}
ranks=${RANKS:-8}
microbatches=${MICROBATCHES:-16}
time=${TIME:-50}
repeat=${REPEAT:-5}
out=${OUT:-benchmarks/results/$preset.md}
program=${PROGRAM:-build/$preset/pipetrain}
[ -x "$program" ] || build "$preset" pipetrain
mkdir -p "$(dirname "$out")"
table=$(mktemp)
trap 'rm -f "$table"' EXIT
load() { cut -d' ' -f1 /proc/loadavg; }

# A row per result. Peaks are of the rank that holds most.
rows() {
  awk '
    function value() { sub(/^[^:]*: */, ""); sub(/,$/, ""); gsub(/"/, ""); return $0 }
    /"[a-z_]+": \[/ { match($0, /"[a-z_]+"/); list = substr($0, RSTART + 1, RLENGTH - 2); most[list] = 0; next }
    /^ *\],?$/ { list = ""; next }
    list != "" { if ($1 + 0 > most[list]) most[list] = $1 + 0; next }
    /"[a-z_]+":/ { match($0, /"[a-z_]+"/); key = substr($0, RSTART + 1, RLENGTH - 2); v[key] = value() }
    key == "tokens_per_second" {
      printf "| %s | %d | %.1f | %.1f | %+.2f%% | %.1f%% | %.1f%% | %d of %d | %.0f | %s | %.1f |\n",
        v["schedule"], v["chunks"], v["makespan_planned"], v["makespan_measured"],
        100 * (v["makespan_measured"] / v["makespan_planned"] - 1), 100 * v["bubble_planned"],
        100 * v["bubble_measured"], most["peak_activations"], most["activation_cap"],
        v["action_overhead_us"],
        v["hop_overhead_us"] == "null" ? "-" : sprintf("%.0f", v["hop_overhead_us"]),
        v["exposed_communication_ms"]
      key = ""
    }'
}

{
  echo "# Schedules, planned and measured"
  echo
  echo "p = $ranks, m = $microbatches, F = B = W = $time ms of a rank's share, 4 KiB messages; \`pipetrain bench --synthetic\`,"
  echo "medians of $repeat steps. Every rank is a process; stages sleep, the executor, the exchange and the messages are real."
  echo
  echo "$("$program" --version | sed 's/;.*/)/'), $(uname -s) on $(uname -m), $(nproc) cores, load average $(load) at the start${PRIORITY:+, ranks run under \`$PRIORITY\`}."
} >"$table"

for latency in ${LATENCY:-0 20}; do
  {
    echo
    echo "## A link of $latency ms per message"
    echo
    echo "| schedule | chunks | planned ms | measured ms | deviation | bubble planned | measured | peak slots | us per action | us per hop | exposed ms |"
    echo "|---|---|---|---|---|---|---|---|---|---|---|"
  } >>"$table"
  for schedule in ${SCHEDULES:-all}; do
    # shellcheck disable=SC2086  # PRIORITY is several words
    run_ranks "$ranks" ${PRIORITY:-} "$program" bench --synthetic --schedule "$schedule" \
      --microbatches "$microbatches" --forward "$time" --backward-input "$time" \
      --backward-weight "$time" --latency "$latency" --repeat "$repeat" --format json "$@" |
      rows >>"$table"
  done
done

{
  echo
  echo "Bubble: (makespan - m(F+B+W)) / makespan. Us per action: from when a computation could start to its end, less its"
  echo "own time; us per hop: from the end of a computation to the arrival of its message, less the link's time (medians)."
  echo "Exposed: time in which the worst rank waited only for messages, not for their computation."
} >>"$table"
cp "$table" "$out"
cat "$out"
