#!/usr/bin/env bash
# The tests marked `gpu`, then the speed of walking with each engine, on one GPU and on all. No network is needed.
#
#   benchmarks/gpu.sh [--platform gpu|cpu] [--out FILE] [OPTIONS OF benchmarks.gpu]
#
# Run it where ksim is installed with its tests (pip install -e '.[dev,cuda,warp]'). PYTHON picks the interpreter. The
# report, a section for docs/benchmarks.md, is written to FILE (gpu.md) and printed. `--platform cpu` tries the script
# itself on a CPU, with small sizes. Exits with 1 if a test or a measurement fails, and reports all the same.
set -u
cd "$(dirname "$0")/.."

python=${PYTHON:-python}
platform=gpu
out=gpu.md
options=()
while [ $# -gt 0 ]; do
  case $1 in
    --platform | --out)
      if [ $# -lt 2 ]; then echo "Error: $1 needs a value." >&2; exit 2; fi
      if [ "$1" = --out ]; then out=$2; else platform=$2; fi
      shift 2 ;;
    *) options+=("$1"); shift ;;
  esac
done
case $platform in
  gpu) : ;;
  cpu) export JAX_PLATFORMS=cpu JAX_DISABLE_MOST_OPTIMIZATIONS=${JAX_DISABLE_MOST_OPTIMIZATIONS:-1} ;;
  *) echo "Error: --platform ($platform) must be gpu or cpu." >&2; exit 2 ;;
esac
# As a user's programs are compiled; tests optimize less otherwise.
export JAX_DISABLE_MOST_OPTIMIZATIONS=${JAX_DISABLE_MOST_OPTIMIZATIONS:-0}
code=0

echo "== Tests marked gpu"
tests=$(KSIM_GPU_TESTS=$platform "$python" -m pytest -q -p no:cacheprovider -m gpu tests/gpu 2>&1) || code=1
echo "$tests"

echo "== Walking"
"$python" -m benchmarks.gpu --platform "$platform" --out "$out" --tests "$(echo "$tests" | tail -n 1)" \
  ${options[@]+"${options[@]}"} || code=1
exit $code
