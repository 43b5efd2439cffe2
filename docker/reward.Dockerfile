# Reward service: built-in verifiers and the sandbox. No user's code outside it.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS code
COPY services /opt/areal/app
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/areal/app

FROM ${BASE} AS environment
ARG ENVIRONMENT=install
COPY docker/environment pyproject.toml constraints.txt /build/
RUN /build/environment "$ENVIRONMENT" reward

FROM ${BASE}
# python: no compiler, for pods of tier T2, which start no programs. sandbox: C, C++, JavaScript, bash. full: Java, Go, Rust too.
ARG TOOLCHAINS=sandbox
RUN case "$TOOLCHAINS" in \
      python) packages="" ;; \
      sandbox) packages="gcc g++ libc6-dev nodejs bash coreutils" ;; \
      full) packages="gcc g++ libc6-dev nodejs bash coreutils default-jdk-headless golang-go rustc" ;; \
      *) echo "TOOLCHAINS is python, sandbox or full, not '$TOOLCHAINS'" >&2; exit 64 ;; \
    esac; \
    if [ -n "$packages" ]; then \
      apt-get update && apt-get install -y --no-install-recommends $packages && rm -rf /var/lib/apt/lists/*; \
    fi
RUN groupadd -g 65532 areal && useradd -u 65532 -g 65532 -d /tmp -M -s /usr/sbin/nologin areal
ENV PATH=/opt/areal/bin:/opt/areal/env/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 HOME=/tmp
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["areal-launch"]
COPY --from=environment /opt/areal /opt/areal
COPY --from=code /opt/areal/app /opt/areal/app
