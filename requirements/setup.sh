#!/usr/bin/env bash
# Makes the virtual environment named by $1. Leaves out: anything outside that folder.
# Safe to repeat; a broken half-made environment is made anew.
set -euo pipefail
venv=$1
python=${PYTHON:-python3}

say() { printf 'setup: %s\n' "$*" >&2; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    say "$python is not Python 3.11 or later; name one: make setup PYTHON=/path/to/python3.11"
    exit 2
fi
if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    say "making $venv"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi

install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes "$@"; }

say "installing pinned packages (the first time this takes a few minutes: Spark alone is 400 MB)"
install --requirement requirements/build.lock
install --no-build-isolation --requirement requirements/longpoll.lock

java_major() {  # the major version of the java command $1, or 0
    local text
    text=$("$1" -version 2>&1 | head -n 1) || { echo 0; return; }
    [[ $text =~ \"([0-9]+) ]] && echo "${BASH_REMATCH[1]}" || echo 0
}
java=${JAVA_HOME:+$JAVA_HOME/bin/java}
if [[ $(java_major "${java:-java}") -lt 17 && $(java_major java) -lt 17 ]]; then
    say "no Java 17 or later found: installing a Java runtime from the package registry"
    install --requirement requirements/java.lock
fi
if ! install --requirement requirements/peers.lock 2>/dev/null; then
    say "note: the real RocketMQ client (extra 'peers') does not install here; its scenarios will be skipped"
fi
if ! install --requirement requirements/fuzz.lock 2>/dev/null; then
    say "note: the coverage-guided fuzzer (extra 'fuzz') does not install here; the long test with it will be skipped"
fi
if ! install --requirement requirements/s3.lock 2>/dev/null; then
    say "note: the S3 service of tests (moto) does not install here; the long tests with it will be skipped"
fi
if ! install --requirement requirements/docs.lock 2>/dev/null; then
    say "note: Sphinx (extra 'docs') does not install here; \`make docs\` will say so, and the tests of the site will be skipped"
fi
if ! install --requirement requirements/notebook.lock 2>/dev/null; then
    say "note: what runs the notebook (nbclient) does not install here; the long test of it will be skipped"
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
touch "$venv/.fresh"
say "ready; source $venv/bin/activate puts longpoll and its python on the PATH"
