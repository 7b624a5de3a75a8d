#!/usr/bin/env bash
# Makes every lock anew. Leaves out addresses and index names, which are the machine's own.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v uv >/dev/null || { echo "lock: uv is not installed: python3 -m pip install uv" >&2; exit 2; }
compile() {
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header "$@"
}
compile requirements/build.in --output-file requirements/build.lock
compile --extra dev pyproject.toml --constraint requirements/build.lock --output-file requirements/longpoll.lock
compile requirements/docs.in --constraint requirements/longpoll.lock --output-file requirements/docs.lock
compile requirements/notebook.in --constraint requirements/longpoll.lock --constraint requirements/docs.lock \
    --output-file requirements/notebook.lock
for name in fuzz java peers s3; do
    compile "requirements/$name.in" --output-file "requirements/$name.lock"
done
