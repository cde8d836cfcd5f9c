#!/usr/bin/env bash
# The units and the manifest: that systemd takes them, and that every flag they
# use is one that the programs have.
set -euo pipefail

coordinator=$PWD/coordinator/lockstep-coordinator
worker=$PWD/worker/lockstep-worker
failed=0

# flags FILE...: the long flags used outside of comments.
flags() { sed 's/^ *#.*//' "$@" | grep -oE -- '--[a-z][a-z-]*' | sort -u; }

check_flags() {  # check_flags PROGRAM FILE...
  local program=$1 help flag
  shift
  help=$("$program" --help)
  for flag in $(flags "$@"); do
    if ! grep -qE -- "(^|[ ,])$flag([ =,:]|$)" <<<"$help"; then
      echo "$(basename "$program") has no flag $flag, which $* uses"
      failed=1
    fi
  done
}

for unit in deploy/systemd/*.service; do
  # Where the programs are installed there is nothing on this machine.
  verified=$TEST_TMPDIR/$(basename "$unit")
  sed -e "s|/usr/bin/lockstep-coordinator|$coordinator|" \
      -e "s|/usr/bin/lockstep-worker|$worker|" "$unit" >"$verified"
  # Warnings about units of the machine's own are none of ours.
  output=$(systemd-analyze verify --man=no "$verified" 2>&1) || true
  if grep -qF "$(basename "$unit")" <<<"$output" || grep -qi "lockstep" <<<"$output"; then
    echo "systemd-analyze verify $unit: $output"
    failed=1
  fi
done
check_flags "$coordinator" deploy/systemd/lockstep-coordinator.service
check_flags "$worker" "deploy/systemd/lockstep-worker@.service"

# The manifest's two programs, each from its `command:` to the next document.
manifest=deploy/kubernetes/lockstep.yaml
awk '/command: \[lockstep-coordinator\]/ {on = 1} /^---/ {on = 0} on' "$manifest" >"$TEST_TMPDIR/coordinator.yaml"
awk '/command: \[lockstep-worker\]/ {on = 1} /^---/ {on = 0} on' "$manifest" >"$TEST_TMPDIR/worker.yaml"
[[ -s $TEST_TMPDIR/coordinator.yaml && -s $TEST_TMPDIR/worker.yaml ]] || {
  echo "$manifest does not run both programs"
  failed=1
}
check_flags "$coordinator" "$TEST_TMPDIR/coordinator.yaml"
check_flags "$worker" "$TEST_TMPDIR/worker.yaml"
# One that does not parse would only be noticed in a cluster.
python3 - "$manifest" <<'PYTHON' || failed=1
import re, sys
documents = re.split(r"^---\n", open(sys.argv[1]).read(), flags=re.M)
kinds = [re.search(r"^kind: (\w+)$", d, re.M) for d in documents]
assert all(kinds), "a document without kind"
assert [k.group(1) for k in kinds].count("StatefulSet") == 2, kinds
assert all(re.search(r"^apiVersion: ", d, re.M) for d in documents)
assert not re.search("\t", "".join(documents)), "a tab in YAML"
PYTHON
exit $failed
