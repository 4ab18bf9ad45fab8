#!/bin/sh
# Fetches S3A, the file system of Hadoop for S3, into .venv-s3a/jars: hadoop-aws of the Hadoop release
# that pyspark contains, and those parts of the AWS SDK that it uses. `make s3a` runs Spark with them.
# With `.venv-spark-peers`, it fetches those of the pyspark there, for benchmarks/spark_peers.py.
# If they cannot be fetched, it prints the reason and fails.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

SDK=2.57.8

python=.venv home=.venv-s3a
[ $# -eq 0 ] || python=$1 home=$1/s3a
[ ! -e "$home/.ready" ] || exit 0
rm -rf "$home"
mkdir -p "$home"
command -v mvn >/dev/null 2>&1 || fail "Maven is needed to fetch hadoop-aws"
hadoop=$(ls "$("$python/bin/python" -c 'import pyspark; print(pyspark.__path__[0])')"/jars |
    sed -n 's/^hadoop-client-api-\(.*\)\.jar$/\1/p')
say "fetching hadoop-aws $hadoop and the AWS SDK $SDK"
sdk=""
for part in s3 s3-transfer-manager sts kms apache-client netty-nio-client; do
    sdk="$sdk<dependency><groupId>software.amazon.awssdk</groupId><artifactId>$part</artifactId>
        <version>$SDK</version></dependency>"
done
cat >"$home/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>keytide</groupId><artifactId>s3a</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.hadoop</groupId><artifactId>hadoop-aws</artifactId><version>$hadoop</version>
      <exclusions><exclusion>
        <groupId>software.amazon.awssdk</groupId><artifactId>bundle</artifactId>
      </exclusion></exclusions>
    </dependency>
    $sdk
  </dependencies>
</project>
POM
# pyspark contains these, in versions of its own.
quietly mvn -q -B -f "$home/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
    -DexcludeGroupIds=org.slf4j,io.netty,commons-codec,commons-logging -DoutputDirectory="$PWD/$home/jars" ||
    fail "hadoop-aws $hadoop could not be fetched; check the repository that Maven is set to"
touch "$home/.ready"
