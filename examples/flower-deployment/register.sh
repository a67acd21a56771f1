#!/usr/bin/env bash
# Register the keys that the SuperLink accepts. Only the public keys are needed.
#
#   ./register.sh [KEYS]
set -euo pipefail
keys=$(cd "${1:-keys}" && pwd)
export FLWR_TELEMETRY_ENABLED=${FLWR_TELEMETRY_ENABLED:-0} FLWR_HOME=${FLWR_HOME:-$PWD/.flwr}
for key in "$keys"/node*.pub; do
    flwr supernode register "$key" tls
done
