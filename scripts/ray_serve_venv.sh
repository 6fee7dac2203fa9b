#!/usr/bin/env bash
# Build a venv with Ray Serve and run the tests of engines/tests/hosts/ray_serve inside it: three replicas on this
# machine, without torch. `python -m bench router` runs in it, too. About 0.5 GB.
# Usage: scripts/ray_serve_venv.sh [folder] [pytest options]
set -euo pipefail
[ "${1-}" != --help ] || { sed -n "s/^# //p;/^set/q" "$0"; exit; }
cd "$(dirname "$0")/.."
venv=${1:-${TMPDIR:-/tmp}/omnireuse-ray-serve-venv}
shift || true

if [ ! -e "$venv/ready" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet --no-compile -c constraints.txt 'ray[serve]==2.60.0' pytest rich typer cachetools msgspec
    touch "$venv/ready"
fi

# -c /dev/null: the project's pytest settings name plugins that this venv lacks, and its marks with them.
# The import first: without Ray Serve the tests would be skipped, and a skip is no failure.
"$venv/bin/python" -c 'import ray.serve'
PATH="$venv/bin:$PATH" PYTHONPATH=src:engines/src:. "$venv/bin/python" -m pytest -c /dev/null --rootdir . -p no:cacheprovider -q \
    --noconftest --strict-markers -o consider_namespace_packages=true -o 'markers=integration: runs an external service' engines/tests/hosts/ray_serve "$@"
