# Trainer: torchrun and FSDP2.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS code
COPY services /opt/areal/app
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/areal/app
COPY trainer/areal_trainer /opt/areal/app/areal_trainer
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/areal/app/areal_trainer

FROM ${BASE} AS environment
ARG ENVIRONMENT=install
# flash: FlashAttention-4 for Hopper, too
ARG EXTRAS=""
COPY docker/environment pyproject.toml constraints.txt /build/
RUN /build/environment "$ENVIRONMENT" trainer traces $EXTRAS

FROM ${BASE} AS runtime
ARG ENVIRONMENT=install
COPY docker/compilers /build/
# Triton compiles its launcher at the first kernel, with Python's headers; NCCL talks to InfiniBand through verbs
RUN if [ "$ENVIRONMENT" = install ]; then /build/compilers gcc g++ libc6-dev libibverbs1 ibverbs-providers; fi

FROM runtime
RUN groupadd -g 65532 areal && useradd -u 65532 -g 65532 -d /tmp -M -s /usr/sbin/nologin areal
ENV PATH=/opt/areal/bin:/opt/areal/env/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 HOME=/tmp
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["areal-launch"]
COPY --from=environment /opt/areal /opt/areal
COPY --from=code /opt/areal/app /opt/areal/app
