#!/bin/sh
# make_venv.sh FOLDER [PYTHON]: a virtual environment on a Python that MXNet 1.9.1 works
# with (3.9 to 3.13), the best one found. 3.11 first: d2l 1.0.3 pins a NumPy that has no
# wheels beyond it.
set -eu
venv=$1
asked=${2:-}

suits() {
    "$1" -c 'import sys, venv, ensurepip
sys.exit(not (3, 9) <= sys.version_info[:2] < (3, 15))' >/dev/null 2>&1
}

if [ -n "$asked" ]; then
    suits "$asked" || {
        echo "make: $asked is not a Python 3.9-3.13 with the venv module;" \
            "choose another PYTHON=" >&2
        exit 2
    }
    candidates=$asked
else
    candidates=
    for version in 3.11 3.10 3.9 3.12 3.13; do
        candidates="$candidates python$version"
        # pyenv's own: its shims answer only for the versions that are switched on.
        for python in "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
            [ -x "$python" ] && candidates="$candidates $python"
        done
    done
    candidates="$candidates python3 python"
fi
for python in $candidates; do
    if suits "$python"; then
        echo "making $venv with $("$python" --version)"
        "$python" -m venv "$venv"
        exit 0
    fi
done
if command -v uv >/dev/null 2>&1; then
    echo "making $venv with uv and Python 3.11"
    uv venv --quiet --seed --python 3.11 "$venv"
    exit 0
fi
echo "make: no Python 3.9-3.13 with the venv module here. Install one (Debian, Ubuntu: apt" \
    "install python3-venv; anywhere: pip install uv) and run make again, or name it:" \
    "make PYTHON=..." >&2
exit 2
