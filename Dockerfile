# The gateway in an image. BASE is any image with python3 (3.11 or newer) and its venv module:
#   docker build -t kvgate .
#   docker build -t kvgate --build-arg BASE=debian-with-python .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/kvgate
WORKDIR /src
# The locked dependencies change rarely and are a layer of their own: they are the wheel's, without the wheel.
COPY pyproject.toml requirements.lock README.md LICENSE ./
RUN mkdir gateway && touch gateway/__init__.py \
 && /opt/kvgate/bin/pip install -c requirements.lock . \
 && /opt/kvgate/bin/pip uninstall -y kvgate
COPY gateway gateway
RUN /opt/kvgate/bin/pip install --no-deps . \
 && /opt/kvgate/bin/python -m compileall -q /opt/kvgate/lib

FROM ${BASE}
# The numbers are what Kubernetes' runAsNonRoot can check; the name is for people.
RUN groupadd --gid 10001 kvgate \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin kvgate
COPY --from=build /opt/kvgate /opt/kvgate
# In a container loopback reaches nobody. Off loopback the admin port is readable; writing there needs KVGATE_ADMIN_TOKEN.
ENV PATH=/opt/kvgate/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    KVGATE_HOST=0.0.0.0 \
    KVGATE_ADMIN_HOST=0.0.0.0
USER 10001:10001
WORKDIR /
EXPOSE 8700 8701
STOPSIGNAL SIGTERM
# Liveness, not readiness: a gateway that waits for its engine is healthy and must not be restarted.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 CMD ["python3", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:' + os.environ.get('KVGATE_PORT', '8700') + '/health', timeout=2)"]
ENTRYPOINT ["kvgate"]
CMD ["serve"]
