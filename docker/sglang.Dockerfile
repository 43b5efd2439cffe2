# Generation: the agent beside stock SGLang, and the trainer, which shares a pod with both under `placement: shared`. DEVICE is
# cuda or cpu.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS code
COPY services /opt/areal/app
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/areal/app
COPY trainer/areal_trainer /opt/areal/app/areal_trainer
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/areal/app/areal_trainer

FROM ${BASE} AS environment
ARG ENVIRONMENT=install
ARG DEVICE=cuda
COPY docker/environment pyproject.toml constraints.txt requirements/sglang-cpu.txt docker/sglang-lock.txt /build/
RUN /build/environment "$ENVIRONMENT" engine trainer traces "sglang-$DEVICE"

FROM ${BASE} AS runtime
ARG ENVIRONMENT=install
COPY docker/compilers /build/
# Triton compiles its launcher at the first kernel, with Python's headers, SGLang its CUDA kernels; NCCL talks to InfiniBand
# through verbs
RUN if [ "$ENVIRONMENT" = install ]; then /build/compilers gcc g++ libc6-dev ninja-build libnuma1 libibverbs1 ibverbs-providers; fi

# The kernels that SGLang would compile at its first tokens, for each compute capability in KERNELS: no card is needed.
FROM runtime AS kernels
ARG ENVIRONMENT=install
ARG DEVICE=cuda
ARG KERNELS="9.0 8.0"
COPY --from=environment /opt/areal /opt/areal
COPY docker/cuda_home docker/sglang_kernels docker/kernels /build/
RUN if [ "$ENVIRONMENT-$DEVICE" = install-cuda ]; then /build/kernels /opt/areal/sglang /opt/areal/kernels $KERNELS; fi

FROM runtime
RUN groupadd -g 65532 areal && useradd -u 65532 -g 65532 -d /tmp -M -s /usr/sbin/nologin areal
ENV PATH=/opt/areal/bin:/opt/areal/env/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 HOME=/tmp SGLANG_PYTHON=/opt/areal/sglang/bin/python AREAL_KERNELS=/opt/areal/kernels
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["areal-launch"]
COPY --from=kernels /opt/areal /opt/areal
COPY --from=code /opt/areal/app /opt/areal/app
