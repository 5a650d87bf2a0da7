#!/usr/bin/env bash
# All checks and tests, in two lines of work side by side: what needs Spark, and all the rest.
#
#     scripts/test.sh [MARKS]    only tests with these marks, as `pytest -m` takes them
#
# Most of the time Spark's tests wait for something, so the rest costs next to no time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

marks="${1:-slow or not slow}"
rest="$(mktemp)"

# Java is set up once, before both need it.
scripts/with-spark.sh true

(make check && scripts/with-spark.sh .venv/bin/pytest -p no:cacheprovider -m "($marks) and not spark") \
    >"$rest" 2>&1 &
side=$!
trap 'kill "$side" 2>/dev/null || true; rm -f "$rest"' EXIT

status=0
scripts/with-spark.sh .venv/bin/pytest -m "($marks) and spark" || status=$?

printf '\nChecks, and tests that need no Spark:\n'
wait "$side" || status=1
cat "$rest"
exit "$status"
