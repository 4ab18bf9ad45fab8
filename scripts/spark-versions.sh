#!/bin/sh
# spark-versions.sh [VERSION...]: the Spark tests on other releases of pyspark than the pinned one,
# by default on the oldest that pyproject.toml allows. ARGS goes to pytest.
# Each release gets .venv-spark-VERSION, which holds pyspark alone; the rest comes from .venv.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

main() {
    for version in "${@:-$(oldest)}"; do
        [ -e ".venv-spark-$version/.ready" ] || make_environment "$version"
        say "Spark tests on pyspark $version"
        # The tests start processes of their own, which find their modules by this Python.
        ".venv-spark-$version/bin/python" -m pytest -m spark ${ARGS:-}
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
    # An import in a .pth file also reads those that lie there, such as the one of this project.
    echo "import site; site.addsitedir('$shared')" >"$("$home/bin/python" -c \
        'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
    touch "$home/.ready"
}

main "$@"
