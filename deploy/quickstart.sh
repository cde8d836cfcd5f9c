#!/usr/bin/env bash
# From nothing to a language model: installs the Debian packages that are
# missing, builds, and trains a small GPT on the King James Bible, on this
# machine's CPU, through a coordinator and two workers.
#
#   deploy/quickstart.sh [--seed N] [--folder FOLDER]
#
# Everything it makes goes to FOLDER, by default quickstart/ in this checkout;
# each run gets a folder of its own there.  (Bazel keeps what it builds in its
# own cache, below ~/.cache.)
set -euo pipefail

usage() { sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$top/quickstart
seed=1
while [[ $# -gt 0 ]]; do
  case $1 in
    --seed | --folder)
      [[ $# -ge 2 ]] || { echo "error: $1 needs a value" >&2; exit 2; }
      if [[ $1 == --seed ]]; then seed=$2; else folder=$(realpath -m "$2"); fi
      shift 2
      ;;
    -h | --help) usage; exit 0 ;;
    *) echo "error: unknown option: $1" >&2; usage >&2; exit 2 ;;
  esac
done
[[ $seed =~ ^[0-9]{1,15}$ ]] || { echo "error: --seed: expected a whole number, got $seed" >&2; exit 2; }

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

say "Programs"
"$top/deploy/install.sh" "$folder/bin"
export PATH=$folder/bin:$PATH

say "Text"
# A verse a line, without the names of books and numbers of verses.
text=$folder/king-james.txt
if [[ ! -s $text ]]; then
  env -u COLUMNS bible -f ge1:1-re22:21 | sed -E 's/^[A-Za-z0-9]+:[0-9]+ //' >"$text.new"
  mv "$text.new" "$text"
fi
echo "$text: $(wc -c <"$text") bytes, $(wc -l <"$text") verses"

run=$folder/runs/$(date +%Y%m%d-%H%M%S)-$$
mkdir -p "$run"
daemons=()
stop() {
  [[ ${#daemons[@]} -eq 0 ]] || kill "${daemons[@]}" 2>/dev/null || true
  wait
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "A coordinator and two workers"
# Port 0 takes one that is free.
lockstep-coordinator --listen 127.0.0.1:0 --store "$run/store" --port-file "$run/port" \
  2>"$run/coordinator.log" &
daemons+=($!)
for _ in $(seq 300); do
  [[ -s $run/port ]] && break
  kill -0 "${daemons[0]}" 2>/dev/null || break
  sleep 0.1
done
[[ -s $run/port ]] || { echo "error: the coordinator did not start:" >&2; cat "$run/coordinator.log" >&2; exit 1; }
LOCKSTEP_COORDINATOR=127.0.0.1:$(cat "$run/port")
export LOCKSTEP_COORDINATOR
threads=$(($(nproc) / 2))
for name in w1 w2; do
  lockstep-worker --coordinator "$LOCKSTEP_COORDINATOR" --name $name --device cpu \
    --threads $((threads > 0 ? threads : 1)) 2>"$run/$name.log" &
  daemons+=($!)
done

# 2 M tokens: 1,000 steps of 8 sequences of 256 bytes.
cat >"$run/job.yaml" <<JOB
display_name: King James
model:
  gpt2: {vocab_size: 256, n_embd: 192, n_layer: 4, n_head: 4}
data:
  files: [$text]
  format: BYTES
  sequence_length: 256
  held_out_fraction: 0.05
  held_out_samples_max: 128
batch: {global_batch_size: 8, micro_batch_size: 4}
schedule:
  max_steps: 1000
  warmup_steps: 40
  decay: COSINE
  peak_learning_rate: 2e-3
  min_learning_rate: 1e-4
  evaluate_every_steps: 250
numerics: {seed: $seed}
parallel: {min_workers: 2}
output_directory: $run/out
JOB

say "Training: $run/job.yaml"
job=$(lockstep submit "$run/job.yaml")
lockstep watch "$job" || {
  code=$?
  echo "The logs are in $run" >&2
  exit $code
}

say "Where the time of the last steps went, rank by rank"
lockstep metrics "$job" --steps 995:999

say "What it writes"
lockstep sample "$run/out/model" --prompt "And the LORD said unto " --length 400 --temperature 0.8 --seed "$seed"

say "What next"
cat <<NEXT
  The model, as a Hugging Face folder:      $run/out/model
  The same again with another seed:         deploy/quickstart.sh --seed 2
  The same bits on any number of workers:   $folder/bin/lockstep run $run/job.yaml --workers 3 --set output_directory=$run/again
                                            $folder/bin/lockstep hash $run/out/model
                                            $folder/bin/lockstep hash $run/again/model
  A job of your own:                        docs/first-job.md
  Every field of a job:                     docs/job-file.md
NEXT
