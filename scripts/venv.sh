#!/usr/bin/env bash
# Makes a virtual environment and installs the package in it, with its developer tools.
#
#     scripts/venv.sh DIRECTORY [PYTHON [REQUIREMENT...]]    with this Python, and these versions too
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/apt.sh

readonly VENV="${1:?usage: scripts/venv.sh DIRECTORY [PYTHON [REQUIREMENT...]]}"
readonly PYTHON="${2:-}"
readonly REQUIREMENTS=("${@:3}")

find_python() {
    local python
    for python in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$python"
            return 0
        fi
    done
    return 1
}

can_make_venv() {
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

fail() {
    echo "$*" >&2
    exit 1
}

if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    python="$(find_python)" || { apt_install python3 && python="$(find_python)"; } ||
        fail "Holdfast needs Python 3.11 or newer. Run: sudo apt-get install python3 python3-venv"
    can_make_venv "$python" || { apt_install python3-venv && can_make_venv "$python"; } ||
        fail "$python cannot make virtual environments. Run: sudo apt-get install python3-venv" \
            "(for another version than the system's: python3.X-venv)"
    echo "Making $VENV with $("$python" --version)."
    "$python" -m venv --clear "$VENV"
fi

echo "Installing Holdfast and its developer tools into $VENV; this takes a minute or two."
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]' \
    "${REQUIREMENTS[@]}"
