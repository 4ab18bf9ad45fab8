#!/bin/sh
# Installs servers of the S3 (versitygw), Google Cloud Storage (fake-gcs-server) and Azure (azurite)
# protocols into .venv-clouds, with Go and npm, for `make clouds`. If one cannot be installed, its
# tests are skipped, with a message.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

GO_PROGRAMS="github.com/versity/versitygw/cmd/versitygw@v1.8.0 github.com/fsouza/fake-gcs-server@v1.56.1"
NODE_PACKAGES="azurite@3.35.0"

mkdir -p .venv-clouds/bin
missing=
if command -v go >/dev/null 2>&1; then
    for program in $GO_PROGRAMS; do
        say "building $program into .venv-clouds"
        GOBIN="$PWD/.venv-clouds/bin" quietly go install "$program" ||
            { say "$program could not be installed; its tests are skipped"; missing=yes; }
    done
else
    say "the servers of S3 and Google Cloud Storage need Go, which is not installed"
    missing=yes
fi
if command -v npm >/dev/null 2>&1; then
    for package in $NODE_PACKAGES; do
        say "fetching $package into .venv-clouds"
        quietly npm install --no-audit --no-fund --prefix .venv-clouds "$package" ||
            { say "$package could not be installed; its tests are skipped"; missing=yes; }
    done
else
    say "the server of Azure's protocol needs npm, which is not installed"
    missing=yes
fi
[ "$missing" = yes ] || touch .venv-clouds/.ready
