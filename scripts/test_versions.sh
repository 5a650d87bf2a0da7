#!/usr/bin/env bash
# Tests Holdfast on other versions of Python and PySpark, and prints a table of the results.
#
#     scripts/test_versions.sh [PYTHON-PYSPARK...]    such as 3.12-4.3
#
# Without arguments, it takes the lowest and the highest versions. Each pair has a virtual environment
# of its own in .versions, with the newest PySpark of that minor version, and logs beside it. A Python
# that cannot be had is skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/apt.sh

readonly LOWEST=3.11-4.2 HIGHEST=3.13-4.3
readonly ENVIRONMENTS="$PWD/.versions"
readonly FORMAT='%-10s %-10s %-34s %s\n'

# Prints the path of command $2 if it is a Python of version $1 that can make virtual environments.
if_python() {
    "$2" -c "import ensurepip, sys, venv
if '%d.%d' % sys.version_info[:2] != '$1': sys.exit(1)
print(sys.executable)" 2>/dev/null
}

# Prints a Python of version $1 that is installed.
installed_python() {
    local python
    for python in "python$1" "$(pyenv root 2>/dev/null)/versions/$1".*/bin/python; do
        if_python "$1" "$python" && return 0
    done
    python="$(uv python find "$1" 2>/dev/null)" && if_python "$1" "$python"
}

# Prints a Python of version $1, which is installed now if need be.
python_of() {
    installed_python "$1" && return 0
    apt_install "python$1" "python$1-venv" && installed_python "$1" && return 0
    uv python install "$1" >/dev/null 2>&1 && installed_python "$1"
}

# Runs pytest in environment $1; its output goes to file $2, of which a failure shows the end.
run() {
    local environment="$1" log="$2" status=0
    shift 2
    HOLDFAST_VENV="$environment" PYTHONDONTWRITEBYTECODE='' scripts/with-spark.sh \
        "$environment/bin/pytest" -q -p no:cacheprovider -o tmp_path_retention_policy=failed "$@" \
        >"$log" 2>&1 || status=$?
    [ "$status" -eq 0 ] || { tail -n 60 "$log" && echo "All of it is in $log."; }
    return "$status"
}

# The last line of a log without its marks: "812 passed, 2 skipped in 80.12s".
result() {
    sed -n '$ s/^=* *\([^=]*[^= ]\) *=*$/\1/p' "$1" | sed 's/, [0-9]* deselected//; s/ ([0-9:]*)$//'
}

# Makes the environment of a pair of versions, if it is not there or the project has changed.
prepare() {
    local environment="$1" python="$2" spark_version="$3"
    [ "$environment/.ready" -nt pyproject.toml ] && return 0
    rm -rf "$environment"
    scripts/venv.sh "$environment" "$python" "pyspark==$spark_version.*"
    touch "$environment/.ready"
}

# Adds a row to the table: Python, PySpark, and what came out.
add_row() {
    rows+=("$(printf "$FORMAT" "$@")")
}

# Tests one pair of versions, such as 3.12-4.3.
test_pair() {
    local python_version="${1%%-*}" spark_version="${1#*-}" environment="$ENVIRONMENTS/$1" python
    if ! python="$(python_of "$python_version")"; then
        add_row "$python_version" "$spark_version" skipped \
            "there is no Python $python_version: install it with apt-get, pyenv or uv"
        return 0
    fi
    prepare "$environment" "$python" "$spark_version"
    echo "Python $python_version, PySpark $spark_version: the tests that need no Spark."
    run "$environment" "$environment/fast.log" -n auto --dist worksteal \
        -m "not slow and not spark" || failed=1
    echo "Python $python_version, PySpark $spark_version: a part of the tests on Spark."
    run "$environment" "$environment/spark.log" -m "versions and not slow" || failed=1
    add_row "$("$environment/bin/python" -c 'import platform; print(platform.python_version())')" \
        "$("$environment/bin/python" -c 'import pyspark; print(pyspark.__version__)')" \
        "$(result "$environment/fast.log")" "$(result "$environment/spark.log")"
    tested=1
}

[ "$#" -gt 0 ] || set -- "$LOWEST" "$HIGHEST"
for pair in "$@"; do
    [[ "$pair" =~ ^3\.[0-9]+-[0-9]+\.[0-9]+$ ]] ||
        { echo "$pair is not a pair of versions of Python and PySpark, such as $HIGHEST" >&2; exit 2; }
done

rows=() failed=0 tested=0
for pair in "$@"; do
    test_pair "$pair"
done
printf "\n$FORMAT" Python PySpark "without Spark" "on Spark"
printf '%s\n' "${rows[@]}"
[ "$tested" -eq 1 ] || { echo "Nothing was tested." >&2; exit 1; }
exit "$failed"
