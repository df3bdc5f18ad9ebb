#!/bin/sh
# Checks the compose file with whichever Compose is here (`docker compose`, docker-compose 1.29); starts nothing and
# needs no Docker daemon. Says so and succeeds when there is none.
#
#   deploy/check.sh
set -eu
cd "$(dirname "$0")/.."

failed=0
wrong() { echo "check: $*" >&2; failed=1; }
# The defaults are what is checked, not what this machine or a `.env` says.
for name in $(env | sed -n 's/^\(FLEET_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done

nothing=$(mktemp)
trap 'rm -f "$nothing"' EXIT

check() { # NAME COMMAND…
    name=$1; shift
    before=$failed failed=0
    if ! text=$("$@" --env-file "$nothing" -f docker-compose.yml --profile '*' config 2>&1); then
        wrong "$name refuses docker-compose.yml:"
        printf '%s\n' "$text" >&2
        return
    fi
    for service in nats postgres coordinator interaction; do
        body=$(printf '%s\n' "$text" | sed -n "/^services:/,/^[a-rt-z]/p" | sed -n "/^  $service:\$/,/^  [^ ]/p")
        [ -n "$body" ] || { wrong "$name: no service $service"; continue; }
        for key in healthcheck restart mem_limit logging networks; do
            printf '%s\n' "$body" | grep -q "^    $key:" || wrong "$name: $service has no $key"
        done
    done
    printf '%s\n' "$text" | sed -n 's/^ *image: *//p' | sort -u | while read -r image; do
        case $image in *:latest) echo "$image" ;; *:*) ;; *) echo "$image" ;; esac
    done | { ! grep . ; } || wrong "$name: images above have no fixed version"
    [ "$failed" = 1 ] || echo "check: docker-compose.yml is good for $name"
    [ "$before" = 0 ] || failed=1
}

found=0
if docker compose version >/dev/null 2>&1; then
    found=1
    check "docker compose $(docker compose version --short)" docker compose
fi
if command -v docker-compose >/dev/null 2>&1; then
    found=1
    check "docker-compose $(docker-compose version --short)" docker-compose
fi
[ "$found" = 1 ] || echo "check: skipped, neither \`docker compose\` nor docker-compose is installed"

for file in deploy/ditto.yaml deploy/nats.conf deploy/ditto-ready deploy/Dockerfile; do
    [ -f "$file" ] || wrong "$file is missing"
done
[ -x deploy/ditto-ready ] || wrong "deploy/ditto-ready is not executable"
exit "$failed"
