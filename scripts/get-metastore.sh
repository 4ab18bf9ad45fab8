#!/bin/sh
# Creates .venv-metastore: the jars of a Hive Metastore, including a database, in jars/, fetched with
# Maven. `make metastore` runs tests against it.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

METASTORE="org.apache.hive:hive-standalone-metastore:3.1.3"
# The libraries with which the metastore accesses files, and which it does not include.
HADOOP="3.1.0"

home=.venv-metastore
command -v mvn >/dev/null 2>&1 || fail "Maven is needed to fetch a Hive Metastore"
rm -rf "$home"
mkdir -p "$home/jars"

say "fetching $METASTORE and its dependencies"
IFS=: read -r group artifact version <<COORDINATES
$METASTORE
COORDINATES
hadoop() {
    printf '<dependency><groupId>org.apache.hadoop</groupId><artifactId>%s</artifactId><version>%s</version></dependency>' "$1" "$HADOOP"
}
cat >"$home/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>keytide</groupId><artifactId>metastore</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>$group</groupId><artifactId>$artifact</artifactId><version>$version</version>
  </dependency>$(hadoop hadoop-common)$(hadoop hadoop-mapreduce-client-core)</dependencies>
</project>
POM
quietly mvn -q -B -f "$home/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
    -DoutputDirectory="$PWD/$home/jars" || fail "$METASTORE could not be fetched"
touch "$home/.ready"
