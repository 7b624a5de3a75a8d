# The broker and its name server: docs/releasing.md says how to build and use the image.
FROM python:3.11-slim AS build
WORKDIR /source
COPY requirements/build.lock requirements/longpoll.lock requirements/
COPY pyproject.toml README.md LICENSE ./
COPY spec spec
COPY reference reference
# Versions are those of the locks. The hashes of the second go, for pip cannot ask for them beside what it builds itself.
RUN python -m venv /opt/longpoll \
 && /opt/longpoll/bin/pip install --no-cache-dir --require-hashes --requirement requirements/build.lock \
 && sed -E '/^ +--hash/d; s/ \\$//' requirements/longpoll.lock >/source/constraints.txt \
 && /opt/longpoll/bin/pip install --no-cache-dir --no-build-isolation --constraint /source/constraints.txt . \
 && /opt/longpoll/bin/pip uninstall --yes --requirement requirements/build.lock

FROM python:3.11-slim
RUN useradd --system --uid 10911 --create-home --home-dir /store longpoll
COPY --from=build /opt/longpoll /opt/longpoll
ENV PATH=/opt/longpoll/bin:$PATH PYTHONUNBUFFERED=1
USER longpoll
WORKDIR /store
VOLUME /store
EXPOSE 10911 9876
# Asks the name server for its topics and the broker for each of them: 0 where both answer.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s CMD ["python", "-c", "from longpoll_client import Admin; a = Admin('127.0.0.1:9876'); [a.topic(t) for t in a.topic_names()]"]
# Inside of a container loopback reaches nobody: which of the host's addresses lead here says `docker run --publish`.
ENTRYPOINT ["longpoll", "serve", "--store", "/store/data", "--listen", "0.0.0.0:10911", "--name-server", "0.0.0.0:9876"]
