#!/usr/bin/env bash
# Create certificates for the SuperLink and a key pair for each SuperNode in ./keys. For testing only: a real federation
# gets its certificates from its own authority, and each node creates its own key and sends only the .pub file.
#
#   ./keys.sh [NODES] [FOLDER] [HOST]
set -euo pipefail
nodes=${1:-5} folder=${2:-keys} host=${3:-localhost}
mkdir -p "$folder" && cd "$folder" && umask 077
[ -e ca.key ] && { echo "keys.sh: $folder already has keys; delete it to start over" >&2; exit 1; }

openssl genrsa -out ca.key 4096 2>/dev/null
openssl req -new -x509 -key ca.key -sha256 -subj "/CN=Test-CA" -days 30 -out ca.crt
openssl genrsa -out server.key 4096 2>/dev/null
openssl req -new -key server.key -subj "/CN=$host" -out server.csr
printf 'subjectAltName=DNS:%s,DNS:localhost,IP:127.0.0.1,IP:::1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n' "$host" > ext.cnf
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -sha256 -days 30 -extfile ext.cnf -out server.pem 2>/dev/null
for k in $(seq 0 $((nodes - 1))); do
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f "node$k"
done
rm -f server.csr ext.cnf ca.srl
echo "keys for the SuperLink and $nodes SuperNodes are in $PWD"
