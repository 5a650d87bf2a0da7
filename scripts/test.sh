#!/usr/bin/env bash
# All checks and tests, in three lines of work side by side: two halves of what needs Spark, and all
# the rest. The last line is done first, and then runs some tests of the first half.
#
#     scripts/test.sh [MARKS]    only tests with these marks, as `pytest -m` takes them
#
# Most of the time Spark's tests wait for something, so three lines take little longer than the longest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

marks="${1:-slow or not slow}"
output="$(mktemp -d)"
second_half=(tests/integration/test_[p-z]*.py)
last=(tests/integration/test_[k-o]*.py)

# Java is set up once, before all need it.
scripts/with-spark.sh true

run() {
    scripts/with-spark.sh .venv/bin/pytest "$@"
}

rest() {
    local status=0
    make check && run -p no:cacheprovider -m "($marks) and not spark" || status=$?
    run -p no:cacheprovider -m "($marks) and spark" "${last[@]}" || status=$?
    return "$status"
}

rest >"$output/rest" 2>&1 &
rest=$!
run -p no:cacheprovider -m "($marks) and spark" "${second_half[@]}" >"$output/second" 2>&1 &
second=$!
trap 'kill "$rest" "$second" 2>/dev/null || true; rm -rf "$output"' EXIT

status=0
run -m "($marks) and spark" "${second_half[@]/#/--ignore=}" "${last[@]/#/--ignore=}" || status=$?

printf '\nThe second half of the tests that need Spark:\n'
wait "$second" || status=1
cat "$output/second"
printf '\nChecks, tests that need no Spark, and the last that do:\n'
wait "$rest" || status=1
cat "$output/rest"
exit "$status"
