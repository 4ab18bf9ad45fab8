# Shared by the scripts in this folder. POSIX sh. Every script starts in the root of the checkout.

say() { printf '%s\n' "keytide: $*" >&2; }

fail() {
    say "$@"
    exit 1
}

# quietly COMMAND...: prints the command's output only on failure.
quietly() {
    log=$(mktemp) || return 1
    if "$@" >"$log" 2>&1; then
        rm -f "$log"
        return 0
    fi
    say "failed: $*"
    tail -n 40 "$log" >&2
    rm -f "$log"
    return 1
}

# as_root: prints the prefix that runs a command as root. Fails if there is none.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        echo env
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        echo "sudo -n env"
    else
        return 1
    fi
}

# apt_install PACKAGE...: installs the first package of the list that the system offers.
# Fails silently if there is no apt or no permission to install.
apt_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    root=$(as_root) || return 1
    quietly $root apt-get update || return 1
    for package in "$@"; do
        apt-cache policy "$package" 2>/dev/null | grep -q 'Candidate: [^(]' || continue
        say "installing $package with apt-get"
        quietly $root DEBIAN_FRONTEND=noninteractive \
            apt-get install -y --no-install-recommends "$package"
        return
    done
    return 1
}

# usable_python LOWEST HIGHEST: prints a Python interpreter between two minor versions of 3.
# Checks $PYTHON, then python3, then python3.N from the latest down.
usable_python() {
    for candidate in ${PYTHON:-} python3 \
        python3.15 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if "$candidate" -c "import sys; sys.exit(not (3, $1) <= sys.version_info[:2] <= (3, $2))" \
            2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return 0
        fi
    done
    return 1
}

# environment_of FOLDER PYTHON LOCK: creates a separate environment with the packages in a lock file.
environment_of() {
    rm -rf "$1"
    if .venv/bin/python -m uv --version >/dev/null 2>&1; then
        pass_pip_settings_to_uv .venv/bin/python
        .venv/bin/python -m uv venv -p "$2" "$1" &&
            .venv/bin/python -m uv pip install -p "$1/bin/python" -r "$3"
    else
        "$2" -m venv --without-pip "$1" &&
            .venv/bin/python -m pip --python "$1/bin/python" install -r "$3"
    fi
}

# uv does not read pip's configuration, so pass on the index and the certificate.
pass_pip_settings_to_uv() {
    config=$("$1" -m pip config list 2>/dev/null) || return 0
    : "${UV_DEFAULT_INDEX:=$(pip_setting index-url)}"
    : "${UV_INDEX:=$(pip_setting extra-index-url)}"
    : "${SSL_CERT_FILE:=$(pip_setting cert)}"
    for name in UV_DEFAULT_INDEX UV_INDEX SSL_CERT_FILE; do
        eval "[ -z \"\$$name\" ]" && unset "$name" || export "${name?}"
    done
}

pip_setting() {
    printf '%s\n' "$config" | sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" | tail -n 1
}
