# syntax=docker/dockerfile:1
# One image for every process: auditor, audits, replicator, bookie, and Spark executors on Kubernetes.
# Everything is inside; nothing is fetched when it runs.

FROM python:3.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# The login by Kerberos is compiled.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev libkrb5-dev
WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY auditor auditor
COPY bookie bookie
COPY replicator replicator
COPY spark_jobs spark_jobs
RUN pip wheel --constraint constraints.txt --wheel-dir /wheels '.[service,kerberos]' \
 && python -m venv /opt/bkheal \
 && /opt/bkheal/bin/pip install --no-index --find-links /wheels 'bkheal[service,kerberos]' \
 && /opt/bkheal/bin/pip uninstall --yes pip setuptools

FROM python:3.11-slim-bookworm
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="bkheal" \
      org.opencontainers.image.description="Auditor and auto-recovery for BookKeeper clusters" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Spark needs a name for its user. libnss-unknown gives one to user ids that are not in /etc/passwd, so the user 185 is
# created before it is installed.
RUN groupadd --system --gid 185 bkheal \
 && useradd --system --uid 185 --gid 185 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin bkheal \
 && apt-get update \
 && apt-get install --yes --no-install-recommends libgssapi-krb5-2 libnss-unknown openjdk-17-jre-headless tini \
 && rm -rf /var/lib/apt/lists/* \
 && grep --quiet '^passwd:.* unknown' /etc/nsswitch.conf \
 && install --directory --owner=185 --group=185 /var/lib/bkheal
COPY --from=build /opt/bkheal /opt/bkheal
COPY --chmod=0555 helm/image/entrypoint.sh /usr/local/bin/bkheal-entrypoint
ENV PATH=/opt/bkheal/bin:$PATH \
    HOME=/tmp \
    USER=bkheal \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PYSPARK_PYTHON=/opt/bkheal/bin/python \
    BKHEAL_SPARK_CLASSES=/opt/bkheal/spark-classes.jsa
# Spark's Java classes in one file, so that an audit starts faster; an audit of a small cluster inside the build makes it.
RUN bkheal audit prepare && rm -rf /tmp/*
WORKDIR /var/lib/bkheal
USER 185:185
EXPOSE 3181 4040 8000 8001 8080 8081
# Probes are the business of whatever runs the image.
HEALTHCHECK NONE
ENTRYPOINT ["tini", "--", "bkheal-entrypoint"]
CMD ["--help"]
