# d2lpar on CPU contexts: the steps of docs/installing.md.
#   docker build -t d2lpar .
#   docker run --rm -v "$PWD/runs:/d2lpar/runs" d2lpar run multiple_gpus
# A tag can move: to pin it, write python@ and the digest that
# `docker buildx imagetools inspect python:3.11-slim` prints.
FROM python:3.11-slim
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 libquadmath0 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /d2lpar
COPY . .
RUN python3 -m venv .venv \
    && .venv/bin/pip install --no-cache-dir -e '.[cpu]'
ENTRYPOINT ["/d2lpar/.venv/bin/d2lpar"]
CMD ["doctor"]
