# One image for every process; what it does is the command: worker (default), beat, api, flower, `feedq db upgrade`.
# Without the `embedded` extra: PostgreSQL and the broker are servers of your own. For jobs of your own build an image
# on this one: docs/howto/deploy.md.

ARG PYTHON_IMAGE=python:3.12.12-slim-trixie

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/feedq
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY feedq feedq
# Such as [otel]; see docs/howto/monitor.md.
ARG EXTRAS=
RUN /opt/feedq/bin/pip install --constraint constraints.txt ".$EXTRAS"

FROM ${PYTHON_IMAGE}
# A user that owns nothing: feedq writes no files, so the root file system may be read-only.
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin feedq
COPY --from=build /opt/feedq /opt/feedq
WORKDIR /app
COPY beat_schedule.py ./
ENV PATH=/opt/feedq/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 FEEDQ_LOG_FORMAT=json \
    FEEDQ_METRICS_PORT=9464 HEALTH_URL=http://127.0.0.1:9464/healthz
USER 10001
# SIGTERM starts the drain; the process leaves within FEEDQ_DRAIN_TIMEOUT_S and a little.
STOPSIGNAL SIGTERM
# Of a worker. HEALTH_URL is another address for the other processes; there is no curl in a slim image.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(os.environ['HEALTH_URL'], timeout=2)"]
CMD ["celery", "-A", "feedq", "worker", "--concurrency=500"]
