# Trainer: torchrun and FSDP2.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ARG ENVIRONMENT=install
COPY docker/environment pyproject.toml constraints.txt /build/
RUN /build/environment "$ENVIRONMENT" trainer
COPY services/areal /opt/areal/app/areal
COPY trainer/areal_trainer /opt/areal/app/areal_trainer
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/areal/app

FROM ${BASE}
RUN groupadd -g 65532 areal && useradd -u 65532 -g 65532 -d /tmp -M -s /usr/sbin/nologin areal
COPY --from=build /opt/areal /opt/areal
ENV PATH=/opt/areal/bin:/opt/areal/env/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 HOME=/tmp
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["areal-launch"]
