# Cleans up after one test server. Arguments: the server's directory, and the signal that ends the server.
# Standard input is a pipe whose other end only the test process holds: end of file means the guard was dropped or the
# test process is dead. The file `pids` names what may be running: the server first, then children that are stopped.
trap '' HUP INT QUIT TERM
dir=$1
signal=$2
while read -r _; do :; done

alive() {
    kill -0 "$1" 2>/dev/null || return 1
    # A dead process whose parent has not collected it still answers `kill -0`.
    case "$(cat "/proc/$1/stat" 2>/dev/null)" in *') Z '*) return 1 ;; esac
}

pids=$(cat "$dir/pids" 2>/dev/null)
server=${pids%%[!0-9]*}
if [ -n "$server" ]; then
    kill "-$signal" "$server" 2>/dev/null
    kill -CONT $pids 2>/dev/null
    tries=0
    while [ $tries -lt 1000 ] && alive "$server"; do
        tries=$((tries + 1))
        sleep 0.005
    done
    kill -KILL $pids 2>/dev/null
fi
# A PostgreSQL that was killed leaves the shared memory segment named on line 7 of its lock file.
if [ -f "$dir/data/postmaster.pid" ]; then
    segment=$(sed -n '7s/^ *[0-9][0-9]* *\([0-9][0-9]*\) *$/\1/p' "$dir/data/postmaster.pid")
    [ -n "$segment" ] && ipcrm -m "$segment" 2>/dev/null
fi
# Children of a killed server may be writing their last file.
tries=0
until rm -rf "$dir" 2>/dev/null || [ $tries -ge 100 ]; do
    tries=$((tries + 1))
    sleep 0.05
done
