#!/bin/sh
# Makes .venv-kafka: the jars of a Kafka broker in broker/, and those of Spark's source for Kafka in
# spark/, fetched with Maven. `make kafka` runs tests against them.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

# The newest broker, and the newest source of Spark that Maven has.
BROKER="org.apache.kafka:kafka_2.13:4.3.1"
SPARK="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0
    org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.2.0
    org.apache.kafka:kafka-clients:4.0.0 org.apache.commons:commons-pool2:2.12.1"

home=.venv-kafka
command -v mvn >/dev/null 2>&1 || fail "Maven is needed to fetch Kafka"
rm -rf "$home"
mkdir -p "$home/broker" "$home/spark"

say "fetching $BROKER and what it needs"
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
for artifact in $SPARK; do
    say "fetching $artifact"
    quietly mvn -q -B dependency:copy -Dartifact="$artifact" -DoutputDirectory="$PWD/$home/spark" ||
        fail "$artifact could not be fetched"
done
touch "$home/.ready"
