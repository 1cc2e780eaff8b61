#!/usr/bin/env bash
# ruff over the tree, mypy (strict) over the packages, seen under their import names through links.
set -euo pipefail
cd "$(dirname "$0")/.."
PY=${PY:?set PY to the python of scripts/venv.sh}
"$PY" -m ruff check .
"$PY" -m ruff format --check .
"$PY" scripts/check_text.py
links=build/import_names/turntree
rm -rf build/import_names && mkdir -p "$links"
for package in envs spec_tree rewards agents configs; do ln -s "$(pwd)/$package" "$links/$package"; done
MYPYPATH=build/import_names "$PY" -m mypy -p turntree
