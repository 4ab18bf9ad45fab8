#!/bin/sh
# Puts releases of Java Paimon into .venv-java, with Maven: more engines for the interoperability
# tests to compare with. Of those that cannot be had the tests are skipped and say so.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

# The core of Paimon with all that it needs. From 2.0 on it comes with the connector of an engine.
ARTIFACTS="org.apache.paimon:paimon-bundle:1.4.2 org.apache.paimon:paimon-flink-2.0:2.0.0"

command -v mvn >/dev/null 2>&1 || {
    say "Java Paimon needs Maven to come, and there is none; its tests are skipped"
    exit 0
}
mkdir -p .venv-java
for artifact in $ARTIFACTS; do
    say "fetching $artifact into .venv-java"
    quietly mvn -q dependency:copy -Dartifact="$artifact" -DoutputDirectory=.venv-java ||
        { say "$artifact could not be fetched; its tests are skipped"; missing=yes; }
done
[ "${missing:-}" = yes ] || touch .venv-java/.ready
