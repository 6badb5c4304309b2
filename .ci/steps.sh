# Shell functions of .ci/run and .ci/full, which source this file: a copy of the tree to work in, and steps.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
versions=(3.11 3.13)

work=$(mktemp -d)
# Each started step is a process group of its own, so that what it runs ends with it.
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

# The user's own settings must not reach the tests; package mirrors and caches may.
unset PYTHONPATH PYTEST_ADDOPTS VIRTUAL_ENV PYTHONDONTWRITEBYTECODE
# Many tests start pytest, which else would compile its plugins each time.
export PYTHONPYCACHEPREFIX=$work/pycache
export PIP_RETRIES=5 PIP_TIMEOUT=60 PIP_DISABLE_PIP_VERSION_CHECK=1
# An extension that cannot be built is an error here.
export MWBUDGET_REQUIRE_EXTENSION=1

timings=()
step() { # name, command …: shows the last line of what it prints; all that matters when it fails
    local name=$1 begin=$SECONDS log=$work/step.log
    shift
    printf '==== %s\n' "$name"
    if ! "$@" >"$log" 2>&1; then
        # The summary first: where a log is cut, it is cut at the end.
        sed -n '/^=* short test summary info/,$p' "$log" | cut -c 1-300 | sed -n 1,40p
        tail -n 300 "$log"
        return 1
    fi
    tail -n 1 "$log"
    timings+=("$(printf '%5d s  %s' $((SECONDS - begin)) "$name")")
}

# The tests of two interpreters run at the same time, each in a tree of its own: on a busy core they have to hold anyway.
started=()
start() { # name, command …: as a step, beside what comes next
    local name=$1
    shift
    printf '==== %s: started\n' "$name"
    ("$@") >"$work/started-${#started[@]}.log" 2>&1 &
    started+=("$!:$name")
}

finish() { # waits for what was started, each as a step
    local number=0 one
    for one in "${started[@]}"; do
        step "${one#*:}" finished "${one%%:*}" "$work/started-$number.log"
        number=$((number + 1))
    done
}

finished() { # pid, log
    local status=0
    wait "$1" || status=$?
    cat "$2"
    return "$status"
}

interpreter() { # version: prints its command, fails when there is none
    local command="python$1" prefix
    if "$command" -c '' 2>/dev/null; then
        echo "$command"
    elif prefix=$(pyenv prefix "$1" 2>/dev/null) && "$prefix/bin/$command" -c '' 2>/dev/null; then
        echo "$prefix/bin/$command"
    else
        return 1
    fi
}

install() { # python, arguments of pip install …; once more when a registry has a bad moment
    "$1" -m pip install --quiet "${@:2}" || { sleep 10 && "$1" -m pip install --quiet "${@:2}"; }
}

commands() { # prints the lines of the shell block under "## Two commands" in the README
    awk '/^## /{here = ($0 == "## Two commands")} here && /^```/{inside = !inside; next} here && inside' README.md
}

story() { # line: it ends in one failure and one pass, and so with status 1
    local status=0
    bash -c "$1" 2>&1 | tee "$work/story.log" || status=$?
    [[ $status == 1 ]] && grep --quiet '1 failed, 1 passed' "$work/story.log"
}

browser() { # for the tests of pages; where it cannot be installed they skip, and say so
    command -v chromium >/dev/null && command -v chromedriver >/dev/null && echo "chromium is here" && return
    (apt-get update && apt-get install --yes --no-install-recommends chromium chromium-driver fonts-dejavu-core) ||
        echo "chromium cannot be installed here: the tests of pages skip"
}

copy() { # name: the tree as it was before anything was installed in it
    mkdir "$work/tree-$1"
    tar --create --exclude=./.venv --exclude='*.so' --exclude=./build . | tar --extract --directory="$work/tree-$1"
}

tests_on() { # python, name
    local venv="$work/venv-$2"
    cd "$work/tree-$2" &&
        "$1" -m venv --upgrade-deps "$venv" &&
        install "$venv/bin/python" --editable . --group test &&
        "$venv/bin/python" -m pytest -m "not browser and not bench"
}

oldest() { # python: prints the pinned floors of [testenv:oldest] in tox.ini
    "$1" - <<'END'
import configparser

tox = configparser.ConfigParser(interpolation=None)
tox.read("tox.ini")
print(tox["testenv:oldest"]["deps"].strip())
END
}

tests_with_oldest() { # python, name
    local venv="$work/venv-$2"
    oldest "$1" >"$work/$2.txt" &&
        "$1" -m venv --upgrade-deps "$venv" &&
        install "$venv/bin/python" --requirement "$work/$2.txt" --editable "$work/tree-$2" &&
        (cd "$work/tree-$2" && "$venv/bin/python" -m pytest -m "" tests/test_plugin.py -k "stands_once or json or github or junit" &&
            MWBUDGET_REQUIRE_SUITES=1 "$venv/bin/python" -m pytest -m "" tests/test_suites.py -k cov)
}

done_all() { # prints how long each step took
    printf '\n==== all passed\n'
    printf '%s\n' "${timings[@]}"
    printf '%5d s  altogether\n' "$SECONDS"
}
