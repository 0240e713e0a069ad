# Sourced by the scripts beside it: puts caches where they outlive a checkout, and installs what a complete run needs.
export CI=true
cache="${XDG_CACHE_HOME:-$HOME/.cache}/bkheal"
# Compiled Python and the caches of the checkers stay outside the checkout, between runs.
export PYTHONPYCACHEPREFIX="$cache/pyc" MYPY_CACHE_DIR="$cache/mypy" RUFF_CACHE_DIR="$cache/ruff"
# One environment for each set of dependencies; make points it at this checkout.
VENV="$cache/venv-$(cat pyproject.toml constraints.txt | sha256sum | cut -c1-16)"
export VENV

# need PROGRAM... -- PACKAGE...: install Debian's packages unless every program is on the path.
need() {
    local program is_missing=
    while [ "$1" != -- ]; do
        program=$1
        command -v "$program" > /dev/null || is_missing=1
        shift
    done
    shift
    if [ -n "$is_missing" ]; then
        apt-get update -q
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
    fi
}

# Two cores install Python's packages and the programs below at the same time.
# pip compiles no modules: it would compile all of them, one after the other. The tests compile those that they import.
make --no-print-directory PIP_OPTIONS=--no-compile "$VENV/.installed-dev" &
packages=$!

# Tests open pages in a real browser and check alerts in a real Prometheus. Without CI they are skipped if it is missing.
need chromium chromedriver prometheus promtool -- chromium chromium-driver prometheus
# Tests use Apache's bookies and its client, with and without TLS; they make the certificates.
need mvn javac openssl -- maven default-jdk-headless openssl
if [ -z "${BKHEAL_APACHE_LIB:-}" ]; then
    export BKHEAL_APACHE_LIB="$cache/apache-bookkeeper-4.17.3"
    if ! ls "$BKHEAL_APACHE_LIB"/bookkeeper-server-*.jar > /dev/null 2>&1; then
        mvn -q -B -f .ci/apache/pom.xml dependency:copy-dependencies -DoutputDirectory="$BKHEAL_APACHE_LIB"
    fi
fi
# Tests use a broker of Pulsar.
if [ -z "${BKHEAL_PULSAR_LIB:-}" ]; then
    export BKHEAL_PULSAR_LIB="$cache/apache-pulsar-4.0.7"
    if ! ls "$BKHEAL_PULSAR_LIB"/pulsar-broker-*.jar > /dev/null 2>&1; then
        mvn -q -B -f .ci/pulsar/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
            -DoutputDirectory="$BKHEAL_PULSAR_LIB"
    fi
fi

wait "$packages"
