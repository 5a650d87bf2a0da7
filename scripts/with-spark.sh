#!/usr/bin/env bash
# Runs a command in the environment that Spark needs: scripts/with-spark.sh COMMAND [ARGUMENT...]
#
# Workers run the Python of $HOLDFAST_VENV, a virtual environment (.venv).
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${HOLDFAST_VENV:-$root/.venv}"

# Spark's version as a tree of its Python files states it, be it a distribution or a pip package.
spark_version() {
    { cat "$1"/{python/pyspark,.}/version.py 2>/dev/null || true; } |
        sed -n "s/^__version__[^=]*= *['\"]\([^'\"]*\).*/\1/p" | head -n 1
}

JAVA_HOME="$("$root/scripts/java.sh")"
export JAVA_HOME

# A SPARK_HOME left by another installation would start that one's Java side under our Python side.
if [ -n "${SPARK_HOME:-}" ]; then
    ours="$(spark_version "$(echo "$venv"/lib/python3*/site-packages/pyspark)")"
    theirs="$(spark_version "$SPARK_HOME")"
    if [ "$theirs" != "$ours" ]; then
        echo "Ignoring SPARK_HOME=$SPARK_HOME: it holds Spark ${theirs:-of an unknown version}," \
            "Holdfast runs on $ours." >&2
        unset SPARK_HOME
    fi
fi

export PYSPARK_PYTHON="$venv/bin/python"
export SPARK_LOCAL_IP="${SPARK_LOCAL_IP:-127.0.0.1}"
exec "$@"
