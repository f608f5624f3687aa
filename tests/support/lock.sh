#!/bin/sh
# Writes all lock files again: with hashes, without download addresses.
set -eu
uv=$1
cd "$(dirname "$0")/../.."
compile() { "$uv" pip compile -q --universal --generate-hashes --no-emit-index-url --no-header "$@"; }
echo "uv==$("$uv" --version | cut -d' ' -f2)" | compile - -o requirements/bootstrap.txt
compile --python-version 3.11 --group pyproject.toml:dev operator/pyproject.toml trainer/pyproject.toml client/pyproject.toml --extra recipes --extra s3 --extra ui --override requirements/overrides.txt -o requirements/dev.txt
compile --python-version 3.11 operator/pyproject.toml -o images/operator/requirements.txt
# The versions that are tested; torch and numpy come with the image's base.
printf 'click\nrich\nsafetensors\nscikit-learn\n' |
    compile --python-version 3.11 --constraint requirements/dev.txt --no-emit-package numpy - -o images/trainer/requirements.txt
echo 'hatchling >= 1.33' | compile --python-version 3.11 - -o images/trainer/build-requirements.txt
# Of `make release` and `make audit`: an environment of their own.
printf 'cyclonedx-python-lib\npip-audit\n' | compile --python-version 3.11 - -o requirements/release.txt
