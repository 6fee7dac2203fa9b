#!/usr/bin/env bash
# Everything a release needs, from a clean checkout of the commit that will carry the tag. Usage: scripts/release.sh
# Writes the wheel and the source distribution to dist/. It publishes nothing and sets no tag.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf '\n== %s\n' "$*"; }

say "a clean checkout, one version everywhere"
[ -z "$(git status --porcelain)" ] || { echo "commit or remove what git status shows first"; exit 1; }
make setup
version=$(.venv/bin/python -c 'import omnireuse; print(omnireuse.__version__)')
grep -q "^## $version " CHANGELOG.md || { echo "CHANGELOG.md has no section for $version"; exit 1; }
.venv/bin/python -m pytest -q -p no:cacheprovider tests/repository/docs/test_metadata.py

say "all tests, the site"
make lint test-all docs

say "the inside of every host (2 GB each)"
make test-hosts

say "build $version"
rm -rf dist
.venv/bin/pip install --quiet build
for each in . lab engines; do .venv/bin/python -m build --outdir dist "$each"; done
for each in dist/*.whl; do .venv/bin/python scripts/wheel_contents.py "$each"; done

say "the wheels in a clean environment: import, command, demo"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet -c constraints.txt "$(grep '^torch==' constraints.txt)"
"$work/venv/bin/pip" install --quiet -c constraints.txt dist/*.whl
(cd "$work" && venv/bin/omnireuse --version)
cp -r reference models "$work" # the demo's models are no part of the wheel
(cd "$work" && PYTHONPATH=. OMP_NUM_THREADS=1 venv/bin/python -m reference demo --out "$work/demo")
test -s "$work/demo/report.html"

say "ready: git tag v$version, then upload dist/*"
