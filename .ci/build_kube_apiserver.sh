#!/usr/bin/env bash
# Builds a real kube-apiserver for tests/chart/test_api_server.py from the Go module proxy. Needs Go and about 4 GB.
#
#   .ci/build_kube_apiserver.sh DIRECTORY [VERSION]
#   BKHEAL_KUBE_APISERVER=DIRECTORY/kube-apiserver BKHEAL_ETCD=/usr/bin/etcd python -m pytest tests/chart/test_api_server.py
#
# etcd is the Debian package etcd-server. Kubernetes keeps the libraries of its repository in one tree and refers to
# them by path, so a build from outside has to name the published version of each.
set -euo pipefail
directory=$(mkdir -p "$1" && cd "$1" && pwd)
version=${2:-1.34.2}
export GOPATH="$directory/go" GOCACHE="$directory/cache" GOFLAGS=-mod=mod
mkdir -p "$directory/build"
cd "$directory/build"
cat > main.go <<'EOF'
// Kubernetes' own main program; its package cannot be built from outside.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}
EOF
upstream=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
{
  echo "module apiserver"
  grep '^go ' "$upstream"
  echo "require k8s.io/kubernetes v$version"
  sed -n 's|^\s*\(k8s.io/[a-z-]*\) => ./staging/.*|replace \1 => \1 v0.'"${version#1.}"'|p' "$upstream"
} > go.mod
# The same versions of everything else as Kubernetes was released with.
sed -n '/^require (/,/^)/p' "$upstream" | grep -v ' v0\.0\.0$' >> go.mod
go mod tidy -e > tidy.log 2>&1 || true
nice -n 15 go build -trimpath -ldflags="-s -w \
  -X k8s.io/component-base/version.gitVersion=v$version \
  -X k8s.io/component-base/version.gitMajor=1 \
  -X k8s.io/component-base/version.gitMinor=$(echo "$version" | cut -d. -f2)" -o "$directory/kube-apiserver" .
"$directory/kube-apiserver" --version
