#!/bin/sh
# Creates .venv-spark-kafka: the latest pyspark for which a Kafka connector can be fetched, and the
# connector's jars in jars/. `make kafka` uses them to read from its broker with a Spark stream.
# If they cannot be fetched, it prints the reason, stores it in why-not, and fails. The test is then
# skipped.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

SPARK=4.2.0
CONNECTOR="spark-sql-kafka-0-10_2.13"

home=.venv-spark-kafka
[ ! -e "$home/.ready" ] || exit 0
rm -rf "$home"

without() {
    say "Spark streams cannot read from Kafka here: $*"
    mkdir -p "$home"
    printf '%s\n' "$*" >"$home/why-not"
    exit 1
}

command -v mvn >/dev/null 2>&1 || without "Maven is needed to fetch the connector"
quietly .venv/bin/python -m venv "$home" || without "$home could not be made"
say "fetching pyspark $SPARK and $CONNECTOR"
quietly "$home/bin/python" -m pip install "pyspark==$SPARK" ||
    without "pyspark $SPARK could not be installed"
cat >"$home/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>keytide</groupId><artifactId>connector</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.spark</groupId><artifactId>$CONNECTOR</artifactId><version>$SPARK</version>
  </dependency></dependencies>
</project>
POM
# Its other dependencies are part of pyspark.
quietly mvn -q -B -f "$home/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
    -DincludeGroupIds=org.apache.spark,org.apache.kafka,org.apache.commons \
    -DexcludeArtifactIds=spark-tags_2.13 -DoutputDirectory="$PWD/$home/jars" ||
    without "$CONNECTOR $SPARK could not be fetched"
# Other modules, such as this project, are imported from .venv.
shared=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "import site; site.addsitedir('$shared')" >"$("$home/bin/python" -c \
    'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
touch "$home/.ready"
