#!/usr/bin/env bash
# Builds the image without Docker and without a registry of images, and keeps it in DIRECTORY for its tests:
#
#   .ci/build_image.sh DIRECTORY
#   BKHEAL_IMAGE_STORE=DIRECTORY python -m pytest tests/chart/test_image_runs.py
#
# Needs root, and Debian's packages buildah and mmdebstrap; the tests need podman, crun and iproute2.
# The base image is built from packages of Debian 12 and its Python 3.11. It replaces the official image of the same name,
# which is Debian 12 with another build of Python 3.11. All other lines of the recipe are unchanged.
set -euo pipefail
cd "$(dirname "$0")/.."
directory=$(mkdir -p "$1" && cd "$1" && pwd)
base=docker.io/library/python:3.11-slim-bookworm
export BUILDAH_ISOLATION=chroot
images() { buildah --root "$directory/store" --runroot "$directory/run" --storage-driver overlay "$@"; }

packages=python3,python3-dev,python3-venv,python3-pip,ca-certificates
if ! images inspect --type image "$base" > /dev/null 2>&1 || [ "$(cat "$directory/base.packages")" != "$packages" ]; then
    mmdebstrap --variant=minbase --include="$packages" bookworm "$directory/base.tar" http://deb.debian.org/debian
    container=$(images from scratch)
    images add --quiet "$container" "$directory/base.tar" /
    images run "$container" sh -c '
        rm -f /usr/lib/python3.11/EXTERNALLY-MANAGED
        cd /usr/local/bin && ln -s /usr/bin/python3 python && ln -s /usr/bin/python3 python3 && ln -s /usr/bin/pip3 pip'
    images commit --quiet "$container" "$base"
    images rm "$container" > /dev/null
    rm "$directory/base.tar"
    echo "$packages" > "$directory/base.packages"
fi

authorities=/etc/ssl/certs/ca-certificates.crt
images build --pull-never --format docker --volume "$authorities:$authorities:ro" \
    --build-arg REVISION="$(git rev-parse HEAD)" --tag localhost/bkheal:built .
images images
