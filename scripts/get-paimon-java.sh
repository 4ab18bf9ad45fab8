#!/bin/sh
# Installs releases of Java Paimon into .venv-java, with Maven: more engines for the interoperability
# tests, and the REST catalog server of Paimon's own tests in .venv-java/rest. If something cannot be
# fetched, its tests are skipped, with a message.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

# The core of Paimon with its dependencies. From 2.0 on, it is part of an engine's connector.
ARTIFACTS="org.apache.paimon:paimon-bundle:1.4.2 org.apache.paimon:paimon-flink-2.0:2.0.0"
# The REST catalog server, and its HTTP server with dependencies.
REST="org.apache.paimon:paimon-core:1.4.2:jar:tests com.squareup.okhttp3:mockwebserver:4.12.0
    com.squareup.okhttp3:okhttp:4.12.0 com.squareup.okio:okio-jvm:3.6.0
    org.jetbrains.kotlin:kotlin-stdlib:1.8.21 junit:junit:4.13.2"

command -v mvn >/dev/null 2>&1 || {
    say "Java Paimon needs Maven, which is not installed; its tests are skipped"
    exit 0
}
fetch() { # artifact, folder
    say "fetching $1 into $2"
    quietly mvn -q dependency:copy -Dartifact="$1" -DoutputDirectory="$2" ||
        { say "$1 could not be fetched; its tests are skipped"; missing=yes; }
}

mkdir -p .venv-java/rest
for artifact in $ARTIFACTS; do fetch "$artifact" .venv-java; done
for artifact in $REST; do fetch "$artifact" .venv-java/rest; done
[ "${missing:-}" = yes ] || touch .venv-java/.ready
