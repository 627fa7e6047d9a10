# syntax=docker/dockerfile:1.7
# Images of the service, the builder and an example of a decoder: docker build --target retriever|retriever-gpu|builder|
# decoder-example. All run as an ordinary user on a read-only root; what they write goes to mounted volumes.
#
# Give both bases with their digests, which say exactly what you build on (docker buildx imagetools inspect NAME):
#   --build-arg PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:... --build-arg VLLM_IMAGE=vllm/vllm-openai:v0.32.0@sha256:...
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG VLLM_IMAGE=vllm/vllm-openai:v0.32.0

FROM ${PYTHON_IMAGE} AS base
# tini reaps children and hands signals on; commands clean up on SIGTERM.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini=0.19.* \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 dresd \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin dresd
ENV PATH=/opt/dresd/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
ENTRYPOINT ["tini", "--", "dresd-retriever"]
CMD ["--help"]

# The project as a wheel; sources do not end up in any image.
FROM base AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY proto proto
COPY retriever_service retriever_service
COPY decoder_client decoder_client
COPY constraints.txt ./
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM wheel AS retriever-packages
RUN python -m venv /opt/dresd \
    && /opt/dresd/bin/python -m pip install --no-cache-dir -c constraints.txt \
        "dresd[server,remote,tracing] @ file://$(echo /wheels/dresd-*.whl)" \
    && /opt/dresd/bin/python -m pip uninstall --yes pip

FROM wheel AS retriever-gpu-packages
RUN python -m venv /opt/dresd \
    && /opt/dresd/bin/python -m pip install --no-cache-dir -c constraints.txt \
        "dresd[server-gpu,remote,tracing] @ file://$(echo /wheels/dresd-*.whl)" \
    && /opt/dresd/bin/python -m pip uninstall --yes pip

FROM wheel AS builder-packages
# The cluster's own parts of Ray (dashboard, autoscaler) beside the library: KubeRay submits jobs through them.
RUN python -m venv /opt/dresd \
    && /opt/dresd/bin/python -m pip install --no-cache-dir -c constraints.txt \
        "dresd[build,server,remote] @ file://$(echo /wheels/dresd-*.whl)" "ray[default]" \
    && /opt/dresd/bin/python -m pip uninstall --yes pip

FROM base AS builder
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="dresd builder" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.licenses="Apache-2.0"
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=builder-packages /opt/dresd /opt/dresd
USER 10001:10001
# KubeRay gives the command of head and workers.
ENTRYPOINT ["tini", "--"]
CMD ["dresd-retriever", "--help"]

FROM ${VLLM_IMAGE} AS decoder-example
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="dresd decoder example" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.licenses="Apache-2.0"
# No constraints here: vLLM's image has its own torch and transformers, which stay as they are.
RUN --mount=from=wheel,source=/wheels,target=/wheels \
    python3 -m pip install --no-cache-dir "dresd[vllm] @ file://$(echo /wheels/dresd-*.whl)"
USER 10001:10001
ENTRYPOINT ["vllm"]
CMD ["--help"]

FROM base AS retriever-gpu
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="dresd retriever, faiss-gpu" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.licenses="Apache-2.0"
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=retriever-gpu-packages /opt/dresd /opt/dresd
USER 10001:10001

# The last one is what `docker build .` makes.
FROM base AS retriever
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="dresd retriever" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.licenses="Apache-2.0"
COPY --from=retriever-packages /opt/dresd /opt/dresd
USER 10001:10001
