#!/usr/bin/env bash
# Prints the JAVA_HOME to run Spark with: one that is there, or one installed now.
#
# Looked for in this order: $JAVA_HOME, `java` on the PATH, $HOLDFAST_JVM_DIR (/usr/lib/jvm).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/apt.sh"

readonly OLDEST=17
readonly JVM_DIR="${HOLDFAST_JVM_DIR:-/usr/lib/jvm}"

# Major version of the Java in a home directory; nothing if there is none that runs.
major_version() {
    [ -x "$1/bin/java" ] || return 0
    { "$1/bin/java" -version 2>&1 || true; } |
        sed -n 's/.* version "\([0-9][0-9]*\).*/\1/p' | head -n 1
}

usable() {
    local major
    major="$(major_version "$1")"
    [ -n "$major" ] && [ "$major" -ge "$OLDEST" ]
}

java_on_path() {
    local java
    java="$(command -v java)" || return 1
    dirname "$(dirname "$(readlink -f "$java")")"
}

# The oldest version that will do comes first: it is the one Spark is tested with most.
java_in_jvm_dir() {
    local home
    for home in "$JVM_DIR"/*; do
        if usable "$home"; then printf '%s %s\n' "$(major_version "$home")" "$home"; fi
    done | sort -n | head -n 1 | cut -d ' ' -f 2-
}

find_java() {
    local home
    for home in "${JAVA_HOME:-}" "$(java_on_path || true)" "$(java_in_jvm_dir)"; do
        if [ -n "$home" ] && usable "$home"; then
            echo "$home"
            return 0
        fi
    done
    return 1
}

find_java && exit 0
echo "No Java $OLDEST or newer found; installing one with apt-get." >&2
for version in 17 21 25; do
    if apt_install "openjdk-$version-jre-headless" && find_java; then exit 0; fi
done
echo "Spark needs Java $OLDEST or newer. Run: sudo apt-get install openjdk-17-jre-headless" \
    "(or openjdk-21-jre-headless), or set JAVA_HOME to the directory of an installed one." >&2
exit 1
