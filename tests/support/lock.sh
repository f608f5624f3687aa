#!/bin/sh
# Writes every lock file anew: hashes, no download addresses.
set -eu
uv=$1
cd "$(dirname "$0")/../.."
compile() { "$uv" pip compile -q --universal --generate-hashes --no-emit-index-url --no-header "$@"; }
echo "uv==$("$uv" --version | cut -d' ' -f2)" | compile - -o requirements/bootstrap.txt
compile --python-version 3.11 --group pyproject.toml:dev operator/pyproject.toml trainer/pyproject.toml --extra recipes -o requirements/dev.txt
compile --python-version 3.11 operator/pyproject.toml -o images/operator/requirements.txt
compile --python-version 3.11 trainer/pyproject.toml --extra recipes --override images/trainer/from-base.txt -o images/trainer/requirements.txt
echo "hatchling >= 1.33" | compile --python-version 3.11 - -o images/trainer/build-requirements.txt
