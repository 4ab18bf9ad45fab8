#!/bin/sh
# Creates .venv-kafka: the jars of a Kafka broker in broker/, fetched with Maven. `make kafka` runs
# tests against it.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

BROKER="org.apache.kafka:kafka_2.13:4.3.1"

home=.venv-kafka
command -v mvn >/dev/null 2>&1 || fail "Maven is needed to fetch Kafka"
rm -rf "$home"
mkdir -p "$home/broker"

say "fetching $BROKER and its dependencies"
IFS=: read -r group artifact version <<COORDINATES
$BROKER
COORDINATES
cat >"$home/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>keytide</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>$group</groupId><artifactId>$artifact</artifactId><version>$version</version>
  </dependency></dependencies>
</project>
POM
quietly mvn -q -B -f "$home/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
    -DoutputDirectory="$PWD/$home/broker" || fail "$BROKER could not be fetched"
touch "$home/.ready"
