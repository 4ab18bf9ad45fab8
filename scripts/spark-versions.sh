#!/bin/sh
# spark-versions.sh [VERSION...]: runs the Spark tests with other releases of pyspark than the pinned
# one, by default with the oldest that pyproject.toml allows. ARGS is passed to pytest.
# Each release gets .venv-spark-VERSION, which contains only pyspark. The rest comes from .venv.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

main() {
    for version in "${@:-$(oldest)}"; do
        [ -e ".venv-spark-$version/.ready" ] || make_environment "$version"
        say "Spark tests on pyspark $version"
        # The tests start processes, which find their modules through this Python.
        ".venv-spark-$version/bin/python" -m pytest -m spark ${ARGS:-}
        ".venv-spark-$version/bin/python" -m pytest -m cluster tests/cluster ${ARGS:-}
    done
}

oldest() { sed -n 's/^spark = .*"pyspark>=\([0-9.]*\).*/\1.0/p' pyproject.toml; }

make_environment() {
    home=".venv-spark-$1"
    rm -rf "$home"
    quietly .venv/bin/python -m venv "$home" || fail "$home could not be made"
    quietly "$home/bin/python" -m pip install "pyspark==$1" ||
        fail "pyspark $1 could not be installed; check the package index that pip is set to"
    shared=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # An import in a .pth file also processes the .pth files there, such as that of this project.
    echo "import site; site.addsitedir('$shared')" >"$("$home/bin/python" -c \
        'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
    touch "$home/.ready"
}

main "$@"
