# Generation: the agent with the embedded engine, and the trainer, which shares a pod with it under `placement: shared`. Also the
# verifier `model`, which has PyTorch from here.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS code
COPY services /opt/areal/app
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/areal/app
COPY trainer/areal_trainer /opt/areal/app/areal_trainer
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/areal/app/areal_trainer

FROM ${BASE} AS environment
ARG ENVIRONMENT=install
COPY docker/environment pyproject.toml constraints.txt /build/
RUN /build/environment "$ENVIRONMENT" engine trainer traces

FROM ${BASE}
RUN groupadd -g 65532 areal && useradd -u 65532 -g 65532 -d /tmp -M -s /usr/sbin/nologin areal
ENV PATH=/opt/areal/bin:/opt/areal/env/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 HOME=/tmp
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["areal-launch"]
COPY --from=environment /opt/areal /opt/areal
COPY --from=code /opt/areal/app /opt/areal/app
