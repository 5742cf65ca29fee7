# One image for every process; what it does is the command: worker (default), beat, flower, `feedq db upgrade`.
# Without the `embedded` extra: PostgreSQL and the broker are servers of your own.

FROM python:3.12-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/feedq
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY feedq feedq
# Such as [otel]; see docs/howto/monitor.md.
ARG EXTRAS=
RUN /opt/feedq/bin/pip install --constraint constraints.txt ".$EXTRAS"

FROM python:3.12-slim
# A user that owns nothing: feedq writes no files, so the root file system may be read-only.
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin feedq
COPY --from=build /opt/feedq /opt/feedq
WORKDIR /app
COPY beat_schedule.py ./
ENV PATH=/opt/feedq/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 FEEDQ_LOG_FORMAT=json
USER feedq
# SIGTERM starts the drain; the process leaves within FEEDQ_DRAIN_TIMEOUT_S and a little.
STOPSIGNAL SIGTERM
CMD ["celery", "-A", "feedq", "worker", "--concurrency=500"]
