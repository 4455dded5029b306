#!/usr/bin/env bash
# Builds both flavours (cuda where nvcc is found: compiled and linked, run only by gpu_check.sh) and
# runs the tests of the host flavour. Installs what is missing, and says what.
#   launch/test.sh           the tests (label sweep left out)
#   launch/test.sh sweep     the long campaigns and full products
#   launch/test.sh tsan      the tests under ThreadSanitizer
#   launch/test.sh asan      the tests under AddressSanitizer and UndefinedBehaviorSanitizer
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$top"

case ${1:-all} in
  all) preset=host labels=(-LE sweep) ;;
  sweep) preset=host labels=(-L sweep) ;;
  tsan) preset=host-tsan labels=(-LE sweep) ;;
  asan) preset=host-asan labels=(-LE sweep) ;;
  *)
    echo "usage: launch/test.sh [sweep|tsan|asan]" >&2
    exit 2
    ;;
esac

install_packages
if [ "${1:-all}" = all ]; then
  if find_nvcc >/dev/null; then
    build cuda
  else
    echo "cuda flavour: not built, nvcc was not found"
  fi
fi
build "$preset"
if [ ! -e ../shared/DESIGN.md ]; then
  echo "not run: the tests labelled shared, for ../shared is not there"
fi
# What ranks as threads need: no core is bound, no thread of BLAS's own.
OPENBLAS_NUM_THREADS=1 ctest --preset "$preset" "${labels[@]}" -j "$(nproc)"
