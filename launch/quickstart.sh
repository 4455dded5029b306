#!/usr/bin/env bash
# Trains a small byte-level GPT on this machine with four ranks, one pipeline stage each, under 1F1B,
# and shows what happened. Installs what is missing (and says what), builds, needs no GPU. About two
# minutes once built. RUN_DIR: where the results go (default: run-quickstart-<time>).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$top"

install_packages
gpus=$(nvidia-smi -L 2>/dev/null | wc -l || true)
preset=host
if [ "$gpus" -ge 4 ] && find_nvcc >/dev/null; then
  preset=cuda
elif [ "$gpus" -gt 0 ]; then
  echo "host flavour: four ranks need four GPUs and nvcc; this machine has $gpus GPU(s)"
fi
build "$preset" pipetrain

# Real text that every machine has: the licences that Debian and Ubuntu ship, else our own sources.
if compgen -G '/usr/share/common-licenses/GPL-*' >/dev/null; then
  mapfile -t text < <(find /usr/share/common-licenses -type f | sort)
else
  mapfile -t text < <(find README.md src kernels -type f | sort)
fi
echo "text: ${#text[@]} files, $(cat "${text[@]}" | wc -c) bytes"
# The loss (in nats) of a model that knows only how often each byte occurs.
unigram=$(cat "${text[@]}" | od -An -v -tu1 -w1 | sort | uniq -c |
  awk '{n[NR] = $1; all += $1} END {for (i in n) h -= n[i] / all * log(n[i] / all); printf "%.3f", h}')

run_dir=${RUN_DIR:-run-quickstart-$(date +%Y%m%d-%H%M%S)}
run_ranks 4 "build/$preset/pipetrain" train --data "${text[@]}" --schedule 1f1b \
  --layers 4 --hidden 64 --heads 4 --sequence-length 64 --microbatches 8 --microbatch-size 4 \
  --steps "${STEPS:-1500}" --learning-rate 3e-3 --lr-schedule cosine --warmup-steps 20 \
  --min-learning-rate 3e-4 --run-dir "$run_dir" --trace "$run_dir/trace.json" \
  --export "$run_dir/model"
echo "unigram:   $unigram would be the loss of a model that knows only how often each byte occurs"
