# Shell functions of .ci/run and .ci/full, which source this file: a copy of the tree to work in, and steps.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
versions=(3.11 3.13)
default=$(python3 -c 'import sys; print("{}.{}".format(*sys.version_info))')
under_load=tests/test_truth_load.py

work=$(mktemp -d)
# Each started step is its own process group, so that `stop` ends its child processes too.
set -m
stop() {
    local pid
    for pid in $(jobs -p); do kill -- "-$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap stop EXIT
mkdir "$work/tree"
git ls-files -z --cached --others --exclude-standard -- . ':!.venv' | while IFS= read -r -d '' file; do
    if [[ -e $file ]]; then printf '%s\0' "$file"; fi
done | tar --create --null --files-from=- | tar --extract --directory="$work/tree"
cd "$work/tree"

# Drop the user's settings for Python and pytest; keep those for package mirrors and caches.
unset PYTHONPATH PYTEST_ADDOPTS VIRTUAL_ENV PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED
# Many tests start pytest, which would otherwise compile its plugins each time.
export PYTHONPYCACHEPREFIX=$work/pycache
export PIP_RETRIES=5 PIP_TIMEOUT=60 PIP_DISABLE_PIP_VERSION_CHECK=1
# Measurements take turns through files there: they wait for nobody but each other.
mkdir "$work/tmp"
export TMPDIR=$work/tmp
# Fail if an extension cannot be built.
export MWBUDGET_REQUIRE_EXTENSION=1

timings=()
step() { # name, command …: prints the last line of its output; if the command fails, the end of the log
    local name=$1 begin=$SECONDS log=$work/step.log
    shift
    printf '==== %s\n' "$name"
    if ! "$@" >"$log" 2>&1; then
        # The summary first, because long logs are truncated at the end.
        sed -n '/^=* short test summary info/,$p' "$log" | cut -c 1-300 | sed -n 1,40p
        # What tests asserted: of several commands in a step, that of an early one is not near the end.
        grep -E -B 1 -A 1 '^(E  |[^ ]+:[0-9]+: )' "$log" | cut -c 1-300 | head -n 100 || true
        tail -n 300 "$log"
        return 1
    fi
    grep '^repeated: ' "$log" || true  # tests that a disturbance made repeat
    tail -n 1 "$log"
    timings+=("$(printf '%5d s  %s' $((SECONDS - begin)) "$name")")
}

# The tests of two interpreters run in parallel, each in its own tree: they must pass on a busy machine too.
started=()
start() { # name, command …: starts a step in the background
    local name=$1
    shift
    printf '==== %s: started\n' "$name"
    ("$@") >"$work/started-${#started[@]}.log" 2>&1 &
    started+=("$!:$name")
}

finish() { # waits for all started steps, and reports each as a step
    local number=0 one
    for one in "${started[@]}"; do
        step "${one#*:}" finished "${one%%:*}" "$work/started-$number.log"
        number=$((number + 1))
    done
    started=()
}

finished() { # pid, log
    local status=0
    wait "$1" || status=$?
    cat "$2"
    return "$status"
}

interpreter() { # version: prints its command, fails if it is not installed
    local command="python$1" prefix
    if "$command" -c '' 2>/dev/null; then
        echo "$command"
    elif prefix=$(pyenv prefix "$1" 2>/dev/null) && "$prefix/bin/$command" -c '' 2>/dev/null; then
        echo "$prefix/bin/$command"
    else
        return 1
    fi
}

install() { # python, arguments of pip install …; retries once if the registry fails
    "$1" -m pip install --quiet "${@:2}" || { sleep 10 && "$1" -m pip install --quiet "${@:2}"; }
}

commands() { # prints the lines of the shell block under "## Two commands" in the README
    awk '/^## /{here = ($0 == "## Two commands")} here && /^```/{inside = !inside; next} here && inside' README.md
}

story() { # line: a command that must measure the example and name its costliest layer
    bash -c "$1" 2>&1 | tee "$work/story.log"
    grep --quiet 'costliest layer MetricsAuthBefore' "$work/story.log"
}

browser() { # for the tests of pages, which skip if no browser can be installed
    command -v chromium >/dev/null && command -v chromedriver >/dev/null && echo "chromium is here" && return
    (apt-get update && apt-get install --yes --no-install-recommends chromium chromium-driver fonts-dejavu-core) ||
        echo "chromium cannot be installed here: the tests of pages skip"
}

checks() { # lint, contracts between folders, types, docs
    install .venv/bin/python --group lint --group types --group docs &&
        .venv/bin/ruff check &&
        .venv/bin/ruff format --check &&
        .venv/bin/lint-imports &&
        .venv/bin/mypy &&
        .venv/bin/zensical build --clean --strict
}

copy() { # name: copies the tree without anything that was installed in it
    mkdir "$work/tree-$1"
    tar --create --exclude=./.venv --exclude='*.so' --exclude=./build . | tar --extract --directory="$work/tree-$1"
}

tests_on() { # python, name, marks: installs, and runs the tests with these marks but those under load
    "$1" -m venv --upgrade-deps "$work/venv-$2" &&
        install "$work/venv-$2/bin/python" --editable "$work/tree-$2" --group "$work/tree-$2/pyproject.toml:test" &&
        touch "$work/installed-$2" &&
        run_on "$2" -m "$3" --ignore="$under_load"
}

run_on() ( # name, arguments of pytest …: runs tests in a tree that `tests_on` installs; waits for the installation
    for _ in {1..600}; do
        if [[ -e $work/installed-$1 ]]; then break; fi
        sleep 1
    done
    cd "$work/tree-$1" && "$work/venv-$1/bin/python" -m pytest "${@:2}"
)

done_all() { # prints the duration of each step
    printf '\n==== all passed\n'
    printf '%s\n' "${timings[@]}"
    printf '%5d s  altogether\n' "$SECONDS"
}
