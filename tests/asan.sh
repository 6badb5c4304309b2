#!/usr/bin/env bash
# The tests of what is written in C, under AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   bash tests/asan.sh python3.13 [more arguments for pytest]
#
# Builds the extensions with both sanitizers into a temporary directory, beside a copy of the package and its tests, and
# runs the tests of the counting core, of suspended tools and of the machine's speed there. Every object of the
# interpreter comes from malloc(), so that its use after its end is seen too. The first error ends the run. It needs gcc
# or clang with their sanitizers' shared libraries, and a Python that has what the tests need; nothing is installed and
# nothing is downloaded.
#
# LEAKS=1 bash tests/asan.sh ... looks for leaks at the end instead of errors. The interpreter leaves much behind when it
# ends, so only memory counts that an extension asked for on its own behalf. Tests that start processes are left out:
# such a process would fail for what the interpreter leaves behind.
set -euo pipefail

python=$(command -v "${1:?usage: bash tests/asan.sh python3.13 [more arguments for pytest]}")
case $python in /*) ;; *) python=$PWD/$python ;; esac # it runs in another directory
shift
compiler=${CC:-gcc}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp -r "$root/pytest_mwbudget" "$root/tests" "$root/pyproject.toml" "$work"
cd "$work"
of_python() { "$python" -c "import sysconfig; print($1)"; }
suffix=$(of_python 'sysconfig.get_config_var("EXT_SUFFIX")')
build() { # the extension's path, then its sources
    rm -f "$1".*.so
    "$compiler" -shared -fPIC -g -O1 -fno-omit-frame-pointer -Wall -Wextra \
        -fsanitize=address,undefined -fno-sanitize-recover=undefined \
        -isystem "$(of_python 'sysconfig.get_path("include")')" "${@:2}" -o "$1$suffix"
}
build pytest_mwbudget/counting/_core pytest_mwbudget/counting/c_core/*.c
build pytest_mwbudget/interpreter/_tracing pytest_mwbudget/interpreter/_tracing.c
build pytest_mwbudget/timing/_pipeline pytest_mwbudget/timing/_pipeline.c
export PYTHONMALLOC=malloc PYTHONPATH=$work UBSAN_OPTIONS=print_stacktrace=1
run_tests() {
    # The tests start processes of their own: those inherit all of this.
    LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libubsan.so)" \
        "$python" -m pytest -q -p no:cacheprovider "$@"
}
core_tests=(tests/test_c_core.py tests/test_cores.py tests/test_retained.py tests/test_foreign_tools.py tests/test_executed.py tests/test_host_speed.py)
if [ "${LEAKS:-0}" = 1 ]; then
    ASAN_OPTIONS=exitcode=0:log_path=report run_tests "${core_tests[@]}" -k "not (process or interpreter or tracer)" "$@"
    ls report.* >/dev/null  # without a report there was no search: the interpreter always leaves something behind
    # In every report, frame 0 is malloc() or the like and frame 1 its caller. The counting hooks call on behalf of others.
    if grep -hE '^ *#1 .*/(c_core/[a-z]+|_tracing|_pipeline)\.c' report.* | grep -v ' in counting_'; then
        echo "leaked by an extension" >&2
        exit 1
    fi
    echo "nothing leaked by an extension"
else
    ASAN_OPTIONS=detect_leaks=0 run_tests "${core_tests[@]}" "$@"
fi
