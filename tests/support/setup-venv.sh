#!/bin/sh
# Creates the virtual environment of the tools and tests and prints its folder.
#
# It is in DTJ_CACHE, named by a hash of the lock files: all clones with the same lock files share it, and a
# changed lock file creates a new one. The packages of this repository are not installed in it but found by path, so that
# two clones never import each other's code.
set -eu
cache=$1
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
    echo "setup: Python 3.11 or newer not found; install it, or name it: make PYTHON=/path/to/python3" >&2
    exit 1
}
key=$(cat "$root/requirements/bootstrap.txt" "$root/requirements/dev.txt" |
    "$python" -c 'import hashlib, sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}-" + hashlib.sha256(sys.stdin.buffer.read() + sys.base_prefix.encode()).hexdigest()[:12])')
venv=$cache/venv-$key
if [ -f "$venv/.complete" ]; then
    echo "$venv"
    exit 0
fi

mkdir -p "$cache/locks"
if command -v flock >/dev/null; then # another clone may be creating the same one
    exec 9>"$cache/locks/venv-$key"
    flock 9
    if [ -f "$venv/.complete" ]; then
        echo "$venv"
        exit 0
    fi
fi
free_kb=$(df -Pk "$cache" | awk 'NR == 2 { print $4 }')
need_kb=$((14 * 1024 * 1024)) # torch and its libraries, packed in the download cache and installed
[ "$free_kb" -ge "$need_kb" ] || {
    echo "setup: not enough disk space for the Python packages: they need 14 GB, $cache has $((free_kb / 1024 / 1024)) GB free; free some space, or set DTJ_CACHE to a folder on another disk" >&2
    exit 1
}
"$python" -c 'import ensurepip, venv' 2>/dev/null || {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "setup: installing the Debian package python3-venv" >&2
        apt-get update -qq >&2 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >&2
    else
        echo "setup: this Python has no venv module; on Debian or Ubuntu: sudo apt-get install python3-venv" >&2
        exit 1
    fi
}
echo "setup: installing the Python packages into $venv (about 2 minutes, 6 GB, most of it torch)" >&2
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r "$root/requirements/bootstrap.txt" >&2
# The lock file is complete, and overrides what some packages say of others: see requirements/overrides.txt.
UV_CACHE_DIR=$cache/uv "$venv/bin/uv" pip install -q --python "$venv/bin/python" --no-deps --require-hashes -r "$root/requirements/dev.txt" >&2
touch "$venv/.complete"
echo "$venv"
