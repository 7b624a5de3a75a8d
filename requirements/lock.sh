#!/usr/bin/env bash
# Make every lock again from pyproject.toml and the *.in files. Addresses and index names stay out of the locks.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v uv >/dev/null || { echo "lock: uv is not installed: python3 -m pip install uv" >&2; exit 2; }
compile() {
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header "$@"
}
compile requirements/build.in --output-file requirements/build.lock
compile requirements/java.in --output-file requirements/java.lock
compile pyproject.toml --extra all --extra connect --group dev --constraint requirements/build.lock \
    --output-file requirements/longpoll.lock
compile --group docs --constraint requirements/longpoll.lock --output-file requirements/docs.lock
compile --group notebook --constraint requirements/longpoll.lock --constraint requirements/docs.lock \
    --output-file requirements/notebook.lock
compile --group mutants --constraint requirements/longpoll.lock --output-file requirements/mutants.lock
for name in fuzz peers s3 solvers; do
    compile --group "$name" --output-file "requirements/$name.lock"
done
