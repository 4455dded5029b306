# Shared by the launch scripts: packages, build, mpirun. Sourced, not run.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# All dependencies but NVIDIA's, as Debian and Ubuntu name them.
packages=(g++ cmake ninja-build libspdlog-dev libfmt-dev libcli11-dev nlohmann-json3-dev
  libopenblas-dev libopenmpi-dev openmpi-bin libgtest-dev libbenchmark-dev)

# Installs the packages that are missing, and says which.
install_packages() {
  local missing=() package
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    echo "packages: nothing to install"
    return
  fi
  echo "packages: installing ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "not root and no sudo; please run: apt-get install ${missing[*]}" >&2
      exit 1
    }
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

find_nvcc() {
  command -v nvcc || { [ -x /usr/local/cuda/bin/nvcc ] && echo /usr/local/cuda/bin/nvcc; }
}

# build PRESET [TARGET...]: configures and builds; warnings are errors.
build() {
  local preset=$1
  shift
  local targets=()
  [ $# -gt 0 ] && targets=(--target "$@")
  echo "building $preset"
  (cd "$top" && cmake --preset "$preset" >"/tmp/pipetrain-configure-$$.log" 2>&1) || {
    cat "/tmp/pipetrain-configure-$$.log" >&2
    return 1
  }
  grep 'pipetrain .* flavour' "/tmp/pipetrain-configure-$$.log"
  rm -f "/tmp/pipetrain-configure-$$.log"
  (cd "$top" && cmake --build --preset "$preset" "${targets[@]}")
}

# run_ranks N COMMAND...: mpirun on this host, with what root, containers and few cores need. Returns
# the program's exit code; a rank that a signal killed counts as lost (4).
run_ranks() {
  local ranks=$1 code=0
  shift
  local settings=(--oversubscribe --bind-to none)
  [ "$(id -u)" -eq 0 ] && settings+=(--allow-run-as-root)
  [ -t 1 ] && settings+=(-x CLICOLOR_FORCE=1)
  OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none} \
    OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_orte_base_help_aggregate=0 \
    mpirun -n "$ranks" "${settings[@]}" "$@" || code=$?
  case $code in
    137 | 139 | 143) return 4 ;;
    *) return "$code" ;;
  esac
}
