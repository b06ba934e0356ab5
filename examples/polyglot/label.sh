#!/usr/bin/env bash
# A label for each parcel: the task comes on standard input, and 0 says done, 65 never. Each label that was printed is a
# line of a file, with its key. The lock is let go when the program ends, if not before.
set -euo pipefail

file=${LABEL_FILE:-labels.txt}
found=$(grep -oE '"payload": \{"item": "[a-z]+"') || { echo "no item to label" >&2; exit 65; }
[[ $found =~ \"item\":\ \"([a-z]+) ]] && item=${BASH_REMATCH[1]}
line="$IDEMPOTENCY_KEY $item"

exec 9>>"$file"
flock 9
[ -z "$(tail -c 1 "$file")" ] || echo >&9 # the machine went down in the middle of a line
grep -qxF "$line" "$file" || echo "$line" >&9
exec 9>&- # the next may have the lock
sync "$file" # the effect is durable before we say so

echo "{\"label\": \"$item, parcel $TASK_ID\"}"
