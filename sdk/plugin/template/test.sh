#!/bin/sh
# Starts a daemon of its own, with the plug-in in a process of its own and then in the daemon's, and compares what the
# clients print. `./test.sh run` leaves the daemon running until a key is pressed.
set -eu
folder=$(mktemp -d)
daemon=
stop() {
    if [ -n "$daemon" ]; then
        kill "$daemon" && wait "$daemon" || true
        daemon=
    fi
}
trap 'stop; rm -rf "$folder"' EXIT
# The shell's variables may name another daemon.
unset ZAZEN_TESTBED ZAZEN_KEY ZAZEN_NODES ZAZEN_NODE ZAZEN_BACKING
export ZAZEN_SOCKET="$folder/zazend.sock"
mkdir "$folder/backing"

start() {
    rm -f "$folder/ready"
    "${ZAZEND:-zazend}" --cache "$folder/cache" --backing "$folder/backing" --free-floor 0 \
        --socket "$ZAZEN_SOCKET" --ready-file "$folder/ready" --plugin "$1" 2>"$folder/log" &
    daemon=$!
    while [ ! -e "$folder/ready" ]; do
        if ! kill -0 "$daemon" 2>/dev/null; then
            cat "$folder/log"
            exit 1
        fi
        sleep 0.05
    done
}

if [ "${1:-}" = run ]; then
    start "$PWD/sample.so"
    echo "try: ZAZEN_SOCKET=$ZAZEN_SOCKET ./client; press Enter to end"
    read -r _ || true
    exit
fi

cat >"$folder/expected" <<END
asked by me: yes
mean 4
sorted: 1 4 7
of nothing: Numerical argument out of domain
END
for place in "" ":in-process"; do
    start "$PWD/sample.so$place"
    ./client >"$folder/said"
    diff "$folder/expected" "$folder/said"
    if command -v python3 >/dev/null; then
        python3 client.py >"$folder/said"
        diff "$folder/expected" "$folder/said"
    fi
    stop
    echo "sample${place:- in a process of its own}: as expected"
done
