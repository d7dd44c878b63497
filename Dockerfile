# The daemon in an image that holds one static binary and the system's CA certificates.
#
#   docker build -t pghandoff .
#   install -d -o 65532 -g 65532 -m 0755 /run/pghandoff
#   docker run --read-only -v /run/pghandoff:/run/pghandoff \
#     -v /etc/pghandoff:/etc/pghandoff:ro pghandoff
#
# Modules come from where GOPROXY says, or from the builder image's own module cache if that has them all.

ARG BUILDER=golang:1.26
ARG BASE=scratch

FROM ${BUILDER} AS build
ARG GOPROXY
ARG GOSUMDB
ARG VERSION=dev
WORKDIR /src
COPY . .
# The folders of the sockets: functions may enter the first and only the daemon the second.
RUN CGO_ENABLED=0 GOTOOLCHAIN=local go build -trimpath -buildvcs=false -ldflags="-s -w -X main.version=${VERSION}" \
      -o /out/pghandoff ./cmd/pghandoff \
    && mkdir -p /out/etc/ssl/certs /run-dirs/pghandoff /run-dirs/pghandoff.control \
    && chmod 0755 /run-dirs/pghandoff && chmod 0700 /run-dirs/pghandoff.control \
    && if [ -f /etc/ssl/certs/ca-certificates.crt ]; then cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/; fi

FROM ${BASE}
LABEL org.opencontainers.image.title="pghandoff" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/ /
COPY --from=build --chown=65532:65532 /run-dirs/ /run/
USER 65532:65532
# Mount the first into the containers of functions. The second is the daemon's own, and belongs in no other container.
VOLUME ["/run/pghandoff", "/run/pghandoff.control"]
ENTRYPOINT ["/pghandoff"]
CMD ["serve", "--config", "/etc/pghandoff/pghandoff.yaml"]
