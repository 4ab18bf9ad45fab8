#!/bin/sh
# Creates .venv-spark-peers: a pyspark for which Delta Lake and Apache Iceberg provide jars, and the
# jars, fetched with Maven. benchmarks/spark_peers.py and tests/interop/lake_writers.py run there.
# Other packages come from .venv.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

PYSPARK=4.1.4
ARTIFACTS="io.delta:delta-spark_4.1_2.13:4.4.0 io.delta:delta-storage:4.4.0
    org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"

home=.venv-spark-peers
command -v mvn >/dev/null 2>&1 || fail "Maven is needed to fetch the jars of the peers"
rm -rf "$home"
quietly .venv/bin/python -m venv "$home" || fail "$home could not be made"
quietly "$home/bin/python" -m pip install "pyspark==$PYSPARK" ||
    fail "pyspark $PYSPARK could not be installed; check the package index that pip is set to"
shared=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# An import in a .pth file also processes the .pth files there, such as that of this project.
echo "import site; site.addsitedir('$shared')" >"$own/shared.pth"
for artifact in $ARTIFACTS; do
    say "fetching $artifact"
    quietly mvn -q dependency:copy -Dartifact="$artifact" -DoutputDirectory="$home/jars" ||
        fail "$artifact could not be fetched"
done
touch "$home/.ready"
