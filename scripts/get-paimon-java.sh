#!/bin/sh
# Puts Java Paimon into .venv-java, with Maven: one more engine for the interoperability tests to
# compare with. Where it cannot be had, its tests are skipped and say so.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

ARTIFACT=org.apache.paimon:paimon-bundle:1.4.2

command -v mvn >/dev/null 2>&1 || {
    say "Java Paimon needs Maven to come, and there is none; its tests are skipped"
    exit 0
}
mkdir -p .venv-java
say "fetching $ARTIFACT into .venv-java"
quietly mvn -q dependency:copy -Dartifact="$ARTIFACT" -DoutputDirectory=.venv-java \
    -Dmdep.stripVersion=true || say "Java Paimon could not be fetched; its tests are skipped"
