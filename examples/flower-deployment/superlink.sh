#!/usr/bin/env bash
# Start the SuperLink with TLS; it accepts only registered SuperNodes. Runs in the foreground; stop it with Ctrl-C.
#
#   ./superlink.sh [KEYS] [PORT]
set -euo pipefail
keys=$(cd "${1:-keys}" && pwd) port=${2:-8000}
export FLWR_TELEMETRY_ENABLED=${FLWR_TELEMETRY_ENABLED:-0} FLWR_HOME=${FLWR_HOME:-$PWD/.flwr}
# Configure this SuperLink as "tls" for `flwr supernode register`, `flwr run` and `flwr list`.
mkdir -p "$FLWR_HOME"
printf '[superlink]\ndefault = "tls"\n[superlink.tls]\naddress = "127.0.0.1:%s"\nroot-certificates = "%s"\n' "$port" "$keys/ca.crt" > "$FLWR_HOME/config.toml"
exec flower-superlink --ssl-ca-certfile "$keys/ca.crt" --ssl-certfile "$keys/server.pem" --ssl-keyfile "$keys/server.key" \
    --enable-supernode-auth --host "${HOST:-127.0.0.1}" --port "$port" --disable-runtime-dependency-installation
