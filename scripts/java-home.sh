#!/bin/sh
# Prints the home of a Java runtime that Spark can use (17 or newer).
# Checks $JAVA_HOME, java on PATH and /usr/lib/jvm. If there is none, it installs one if permitted,
# and otherwise says how to.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

LOWEST=17

main() {
    find_java && return
    say "no Java $LOWEST or newer found (Spark runs on it)"
    apt_install openjdk-17-jre-headless openjdk-21-jre-headless openjdk-25-jre-headless \
        default-jre-headless && find_java && return
    fail "install a Java runtime, for example as root:" \
        "apt-get update && apt-get install openjdk-17-jre-headless;" \
        "or set JAVA_HOME to one of version $LOWEST or newer"
}

find_java() {
    for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java /usr/lib/jvm/*/bin/java; do
        home_if_new_enough "$java" && return
    done
    return 1
}

# The runtime reports its home itself, so links, shims and wrappers lead to the real one.
home_if_new_enough() {
    properties=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    version=$(property java.specification.version)
    case $version in '' | *[!0-9]*) return 1 ;; esac # 1.8 and older have a dot
    [ "$version" -ge "$LOWEST" ] && property java.home
}

property() { printf '%s\n' "$properties" | sed -n "s/^ *$1 = //p"; }

main
