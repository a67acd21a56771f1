#!/usr/bin/env bash
# Start a SuperNode that authenticates with its key. With the same key it keeps its node id when it restarts, and with it
# what the server remembers about it.
#
#   ./supernode.sh K OF [KEYS] [SUPERLINK]      K of OF: the node's share of the data
#   ATTACK=sign_flip ./supernode.sh 4 5         a node that lies
set -euo pipefail
k=$1 of=$2 keys=$(cd "${3:-keys}" && pwd) superlink=${4:-127.0.0.1:8000}
export FLWR_TELEMETRY_ENABLED=${FLWR_TELEMETRY_ENABLED:-0} FLWR_HOME=${FLWR_HOME:-$PWD/.flwr}
exec flower-supernode --root-certificates "$keys/ca.crt" --auth-supernode-private-key "$keys/${KEY:-node$k}" \
    --superlink "$superlink" --host 127.0.0.1 --port "${PORT:-$((9100 + k))}" \
    --node-config "partition-id=$k num-partitions=$of${ATTACK:+ attack=\"$ATTACK\"}${MARKER:+ marker=\"$MARKER\"}"
