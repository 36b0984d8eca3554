#!/bin/sh
# Says what the machine lacks to build r2ccl, all of it at once and before anything is downloaded.
# usage: tools/check_system.sh PYTHON
set -u
python=${1:-python3}
missing=""
packages=""

need() { # need WHAT PACKAGE
  missing="$missing\n  - $1"
  packages="$packages $2"
}

if ! command -v "$python" >/dev/null 2>&1; then
  need "$python (3.10 or later)" "python3 python3-venv python3-dev"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  need "Python 3.10 or later ($python is $("$python" -V 2>&1)); choose another with PYTHON=..." "python3"
else
  # Debian and Ubuntu keep ensurepip in python3-venv: without it "python3 -m venv" fails half-way.
  "$python" -c 'import ensurepip, venv' 2>/dev/null || need "the venv module of $python" "python3-venv"
  header='import os, sysconfig; print(os.path.join(sysconfig.get_path("include"), "Python.h"))'
  [ -f "$("$python" -c "$header")" ] || need "Python.h, the C headers of $python" "python3-dev"
fi

compiler=${CXX:-c++}
if ! command -v "${compiler%% *}" >/dev/null 2>&1; then
  need "a C++20 compiler ($compiler)" "g++"
elif ! echo '#include <span>
int main() { return 0; }' | $compiler -std=c++20 -x c++ -fsyntax-only - 2>/dev/null; then
  need "a compiler with C++20 ($compiler has none; g++ 10 or later, or CXX=...)" "g++"
fi
command -v make >/dev/null 2>&1 || need "make" "make"

if [ -n "$missing" ]; then
  printf 'r2ccl cannot be built yet; missing:%b\n' "$missing" >&2
  printf 'On Debian or Ubuntu (as root):  apt-get update && apt-get install -y%s\n' "$packages" >&2
  exit 1
fi
