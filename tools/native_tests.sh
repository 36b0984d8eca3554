#!/bin/bash
# Build and run the C++ tests.  usage: tools/native_tests.sh BUILD_DIR SANITIZER JOBS [LABEL]
#   SANITIZER: "", address or thread     LABEL: only the tests that have it, of which a target LABEL_tests exists
set -euo pipefail
folder=$1 sanitizer=$2 jobs=$3 label=${4:-}
cd "$(dirname "$0")/.."

if [ -n "$sanitizer" ]; then
  # The compiler knows the flag everywhere; the library that it needs is sometimes a package of its own.
  probe=$(mktemp -d)
  trap 'rm -rf "$probe"' EXIT
  if ! echo 'int main() {}' | ${CXX:-c++} "-fsanitize=$sanitizer" -x c++ - -o "$probe/a" 2>"$probe/err"; then
    echo "SKIPPED: native tests under -fsanitize=$sanitizer: the compiler cannot link it: $(tail -n 1 "$probe/err")"
    exit 0
  fi
  # Some kernels randomise addresses more than older sanitizer libraries can bear; without randomisation they work.
  if ! "$probe/a" >/dev/null 2>&1 && ! setarch "$(uname -m)" -R "$probe/a" >/dev/null 2>&1; then
    echo "SKIPPED: native tests under -fsanitize=$sanitizer: an empty program does not run under it here"
    exit 0
  fi
fi
launcher=()
leave_out=()
# Arithmetic of one thread has no races to find and would take minutes.
[ "$sanitizer" = thread ] && leave_out=(--exclude-regex '^test_reduce$')
if [ "$sanitizer" = thread ] && setarch "$(uname -m)" -R true 2>/dev/null; then
  launcher=(setarch "$(uname -m)" -R)
fi

mkdir -p "$(dirname "$folder")"
cmake -S . -B "$folder" -DR2CCL_TESTS=ON -DR2CCL_PYTHON=OFF -DR2CCL_SANITIZE="$sanitizer" \
  -DCMAKE_BUILD_TYPE=Release >"$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }
cmake --build "$folder" --parallel "$jobs" ${label:+--target "${label}_tests"} >>"$folder.log" 2>&1 || { tail -n 60 "$folder.log"; exit 1; }
echo "native tests${label:+ of $label}${sanitizer:+ under -fsanitize=$sanitizer}:"
ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1} \
  TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1} \
  ${launcher[@]+"${launcher[@]}"} ctest --test-dir "$folder" --parallel "$jobs" --output-on-failure --timeout 120 --no-tests=error \
  ${leave_out[@]+"${leave_out[@]}"} ${label:+--label-regex "^$label\$"}
