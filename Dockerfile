# Two images of one static binary, both for uid 65532 and `--read-only --cap-drop ALL --security-opt no-new-privileges`: what
# the gate writes is in /run/syngate. docs/container.md says how to use them.
#
#   docker build -t syngate .                             the gate alone, FROM scratch
#   docker build -t syngate-haproxy --target haproxy .    the gate and HAProxy
#
# Any glibc image with Rust and a linker can build, and any with HAProxy in PATH can be the second one's base.
ARG BUILD_IMAGE=rust:1-slim-trixie
ARG HAPROXY_IMAGE=haproxy:3.2
ARG RUN_IMAGE=scratch

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
# With a target the flag is for the binary alone: procedural macros can't be static.
RUN mkdir .cargo \
    && rustc -vV \
    | sed -n 's/^host: \(.*\)/[build]\ntarget = "\1"\nrustflags = ["-C", "target-feature=+crt-static"]/p' \
    > .cargo/config.toml
# The dependencies alone, for empty sources: a change of the code uses this layer again. Cargo wants every file that it is told
# of, tests too.
COPY Cargo.toml Cargo.lock ./
COPY benches/harness/Cargo.toml benches/harness/
COPY gate/Cargo.toml gate/
COPY metrics/Cargo.toml metrics/
COPY supervisor/Cargo.toml supervisor/
RUN for source in src/main.rs gate/src/lib.rs metrics/src/lib.rs supervisor/src/lib.rs benches/harness/src/main.rs \
        benches/micro.rs $(sed -n 's/^path = "\(.*\)"$/\1/p' Cargo.toml); do \
        mkdir -p "$(dirname "$source")" && echo 'fn main() {}' > "$source" || exit 1; \
    done \
    && cargo build --release --locked
COPY metrics/src metrics/src
COPY gate/src gate/src
COPY supervisor/src supervisor/src
COPY src src
# Cargo goes by times: the sources have to be newer than what was built of the empty ones.
RUN find metrics gate supervisor src -name '*.rs' -exec touch {} + \
    && cargo build --release --locked \
    && install -D target/*/release/syngate /out/syngate \
    && install -d -m 0700 /out/run/syngate

# The front tier: `syngate run --haproxy`, with a stock configuration.
FROM ${HAPROXY_IMAGE} AS haproxy
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="syngate-haproxy" \
      org.opencontainers.image.description="HAProxy behind a TCP relay that holds connections while it reloads" \
      org.opencontainers.image.licenses="Apache-2.0 OR MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/syngate /usr/local/bin/syngate
COPY --from=build --chown=65532:65532 /out/run /run
VOLUME ["/run/syngate"]
USER 65532:65532
# The place of HAProxy's own image. Metrics on loopback could be read by nobody outside of the container.
ENV SYNGATE_HAPROXY=/usr/local/etc/haproxy/haproxy.cfg \
    SYNGATE_METRICS=0.0.0.0:9464
EXPOSE 80 443 9464
# HAProxy's own image has SIGUSR1.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["/usr/local/bin/syngate", "status", "--ready"]
ENTRYPOINT ["/usr/local/bin/syngate"]
CMD ["run"]

# The gate alone: no shell, no server. A COMMAND has to be in the image, so copy the binary into the server's:
#   COPY --from=syngate /usr/local/bin/syngate /usr/local/bin/
FROM ${RUN_IMAGE} AS gate
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="syngate" \
      org.opencontainers.image.description="A front TCP relay that never reloads" \
      org.opencontainers.image.licenses="Apache-2.0 OR MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/syngate /usr/local/bin/syngate
COPY --from=build --chown=65532:65532 /out/run /run
VOLUME ["/run/syngate"]
USER 65532:65532
ENV SYNGATE_METRICS=0.0.0.0:9464
EXPOSE 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["/usr/local/bin/syngate", "status", "--ready"]
ENTRYPOINT ["/usr/local/bin/syngate"]
CMD ["run"]
