# The gate alone: one static binary, no shell. A COMMAND that it is to run has to be added:
#   FROM your/syngate AS gate
#   FROM your/backend
#   COPY --from=gate /syngate /syngate
#
# docker run --read-only --cap-drop ALL --security-opt no-new-privileges ... works: all that it writes is in /run/syngate.

ARG BUILD_IMAGE=rust:1-slim-trixie
ARG RUN_IMAGE=scratch

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY . .
# With --target the flag is for the binary alone: procedural macros can't be static.
RUN target="$(rustc -vV | sed -n 's/^host: //p')" \
    && RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --locked --target "$target" \
    && install -D "target/$target/release/syngate" /out/syngate \
    && install -d -m 0700 -o 65532 -g 65532 /out/run/syngate

FROM ${RUN_IMAGE}
COPY --from=build /out/syngate /syngate
COPY --from=build --chown=65532:65532 /out/run/syngate /run/syngate
VOLUME ["/run/syngate"]
USER 65532:65532
# On loopback nobody outside of the container could read them.
ENV SYNGATE_METRICS=0.0.0.0:9464
EXPOSE 9464
HEALTHCHECK --interval=10s --timeout=3s CMD ["/syngate", "status", "--ready"]
ENTRYPOINT ["/syngate"]
CMD ["run"]
