#!/bin/bash
# Everything that only a GPU can show, in one unattended run of a few minutes; nothing is downloaded.
#
#   tests/gpu/run.sh [OUT]        OUT: folder for gpu.jsonl and the logs (default: out/gpu)
#
# Needs nvcc, a C++20 compiler, CMake >= 3.20, and a Python (PYTHON=, else .venv's, else python3) with numpy, ml_dtypes,
# cython, pytest, pytest-timeout and cupy. With R2CCL_CUDA_LIBRARY=.../libfake_cuda.so it runs without a GPU, on the tests'
# driver: all but the times.
# Exit status 0: every check passed and every bound was met.
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
out=${1:-out/gpu}
mkdir -p "$out"
out=$(cd "$out" && pwd)
results=$out/gpu.jsonl
: >"$results"
export PATH=$root/.venv/bin:$PATH
python=${PYTHON:-python3}
export PYTHONPATH=$root/build/gpu/python:$root/tests/gpu

# A part is tests/gpu/part_NAME.py RESULTS; its limit in seconds follows. New parts are added here.
parts=(kernels:150 bandwidth:90 streams:60 ipc:60 collectives:150)

missing=$("$python" - <<'PY'
import importlib.util
print(*(m for m in ("numpy", "ml_dtypes", "Cython", "pytest", "pytest_timeout", "cupy") if not importlib.util.find_spec(m)))
PY
) || exit 2
[ -z "$missing" ] || { echo "run.sh: $python lacks: $missing"; exit 2; }
"$python" -c 'import sys; print("python", sys.version.split()[0], sys.executable)'
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

status=0
note() { # NAME VALUE PASSED NOTE
  printf '{"part": "run", "name": "%s", "value": "%s", "passed": %s, "note": "%s"}\n' "$1" "$2" "$3" "$4" >>"$results"
}

started=$SECONDS
cuda=ON
case ${R2CCL_CUDA_LIBRARY:-} in *fake_cuda*) cuda=${R2CCL_CUDA:-OFF} ;; esac
if cmake -S . -B build/gpu -DCMAKE_BUILD_TYPE=Release -DR2CCL_CUDA="$cuda" -DPython_EXECUTABLE="$(command -v "$python")" \
    ${R2CCL_CUDA_ARCHS:+"-DR2CCL_CUDA_ARCHS=$R2CCL_CUDA_ARCHS"} >"$out/build.log" 2>&1 &&
  cmake --build build/gpu --parallel "${JOBS:-$(nproc)}" >>"$out/build.log" 2>&1; then
  rm -rf build/gpu/python
  mkdir -p build/gpu/python
  cp -r src/r2ccl build/gpu/python/
  cp build/gpu/src/r2ccl/_native/core*.so build/gpu/python/r2ccl/_native/
  note build ok true "$((SECONDS - started)) s"
else
  tail -n 40 "$out/build.log"
  note build FAILED false "see build.log"
  exit 1
fi
"$python" -c 'import os; from r2ccl._native import core; n, why = core.cuda_probe(os.environ.get("R2CCL_CUDA_LIBRARY", "")); print(n, "GPUs", why); raise SystemExit(n == 0)' ||
  { note "a GPU" FAILED false "none"; exit 1; }

for part in "${parts[@]}"; do
  name=${part%%:*} limit=${part##*:}
  timeout "$limit" "$python" "tests/gpu/part_$name.py" "$results" 2>"$out/$name.err" | tee "$out/$name.log"
  ended=${PIPESTATUS[0]}
  if [ "$ended" -ne 0 ]; then
    status=1
    [ "$ended" -eq 124 ] && note "$name" "TIMED OUT" false "after $limit s"
    [ "$ended" -ne 124 ] && note "$name" "FAILED" false "status $ended"
    tail -n 15 "$out/$name.err"
  fi
done

if command -v compute-sanitizer >/dev/null && case ${R2CCL_CUDA_LIBRARY:-} in *fake_cuda*) false ;; esac; then
  timeout 120 compute-sanitizer --tool memcheck --error-exitcode 9 "$python" tests/gpu/part_streams.py \
    >"$out/sanitizer.log" 2>&1
  ended=$?
  [ "$ended" -eq 9 ] && status=1
  note "compute-sanitizer memcheck" "status $ended" "$([ "$ended" -eq 9 ] && echo false || echo true)" "see sanitizer.log"
fi

echo
"$python" - "$results" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
wrong = [line for line in lines if not line["passed"]]
print(f"{len(lines)} results, {len(wrong)} wrong; {sys.argv[1]}")
for line in wrong:
    print(f"!! {line['part']}: {line['name']}: {line['value']} {line['note']}")
PY
[ "$status" -eq 0 ] && ! grep -q '"passed": false' "$results"
