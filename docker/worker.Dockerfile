# Rollout workers and the recipe's own reward: what recipes import, without torch.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS code
COPY services /opt/areal/app
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/areal/app

FROM ${BASE} AS environment
ARG ENVIRONMENT=install
COPY docker/environment pyproject.toml constraints.txt /build/
RUN /build/environment "$ENVIRONMENT" reward data traces

FROM ${BASE}
RUN groupadd -g 65532 areal && useradd -u 65532 -g 65532 -d /tmp -M -s /usr/sbin/nologin areal
ENV PATH=/opt/areal/bin:/opt/areal/env/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 HOME=/tmp
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["areal-launch"]
COPY --from=environment /opt/areal /opt/areal
COPY --from=code /opt/areal/app /opt/areal/app
