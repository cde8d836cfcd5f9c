#!/usr/bin/env python3
"""Whole jobs against PyTorch's DistributedDataParallel, in turn on this machine, as ratios.

    tests/bench/train_bench.py [--model tiny] [--workers 2] [--rounds 3]

Ours is an ordinary job: a coordinator and one-thread workers on loopback, real data reading, exact sums.
PyTorch is tests/bench/pytorch_gpt.py at its best settings (Debian: python3-torch, libopenblas0-openmp).  Both take the
same batch a process of sequences of 256 tokens; medians over steps, then over rounds.  Nothing else should run.
"""
import argparse
import csv
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile

import jobs
from jobs import TOP

MODELS = {"tiny": (256, 4, 4, 256), "small": (384, 6, 6, 256), "gpt2": (768, 12, 12, 50257)}
LENGTH = 256
OPENBLAS = "/usr/lib/x86_64-linux-gnu/openblas-openmp"


def ours(folder, model, workers, batch, micro, steps, warmup, tag, precision="FLOAT32"):
    """Tokens a second, the share of the step that waits for communication, a trainer's peak resident MB."""
    width, layers, heads, vocabulary = MODELS[model]
    data = os.path.join(folder, f"{model}.u32")
    if not os.path.exists(data):
        rng = random.Random(1)
        with open(data, "wb") as f:
            for _ in range(400_000):
                f.write(rng.randrange(vocabulary).to_bytes(4, "little"))
    job = {
        "model": {"gpt2": {"vocab_size": vocabulary, "n_embd": width, "n_layer": layers, "n_head": heads}},
        "data": {"files": [data], "format": "TOKENS_U32", "sequence_length": LENGTH},
        "batch": {"global_batch_size": batch * workers, "micro_batch_size": micro},
        "schedule": {"max_steps": steps + warmup, "peak_learning_rate": 3e-4},
        "numerics": {"precision": precision},
        "output_directory": os.path.join(folder, f"out-{tag}"),
    }
    path = os.path.join(folder, f"job-{tag}.json")
    with open(path, "w") as f:
        json.dump(job, f)
    metrics = os.path.join(folder, f"metrics-{tag}.csv")
    subprocess.run([os.path.join(TOP, "bazel-bin/cli/lockstep"), "run", path, "--workers", str(workers), "--threads",
                    "1", "--metrics", metrics], check=True, stdout=subprocess.DEVNULL)
    with open(metrics) as f:
        rows = [r for r in csv.DictReader(f) if int(r["step"]) >= warmup]
    step = statistics.median(float(r["step_ms"]) for r in rows)
    exposed = statistics.median(float(r["exposed_communication_ms"]) for r in rows)
    peak = max(int(r["peak_resident_bytes"]) for r in rows) / 2**20
    return dict(tokens_per_s=batch * workers * LENGTH / step * 1e3, exposed=exposed / step, peak_mb=peak)


def pytorch(model, mode, workers, batch, steps, warmup):
    env = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    env.update(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="-1", LD_LIBRARY_PATH=OPENBLAS)
    with open("/proc/cpuinfo") as f:
        env["ATEN_CPU_CAPABILITY"] = "avx512" if "avx512f" in f.read() else "avx2"
    out = subprocess.run(["/usr/bin/python3", os.path.join(TOP, "tests/bench/pytorch_gpt.py"), "--model", model,
                          "--mode", mode, "--procs", str(workers), "--batch", str(batch), "--steps", str(steps),
                          "--warmup", str(warmup), "--threads", "1"], check=True, env=env, text=True,
                         stdout=subprocess.PIPE).stdout
    # A line a rank, which may run into each other; all say the same.
    return json.loads(re.search(r"\{.*?\}", out).group(0))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", choices=MODELS, default="tiny")
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--batch", type=int, default=8, help="sequences a worker and step")
    p.add_argument("--micro", type=int, default=4, help="our micro-batch")
    p.add_argument("--precision", choices=["FLOAT32", "BFLOAT16"], default="FLOAT32", help="ours; PyTorch's is float32")
    a = p.parse_args()
    if subprocess.run(["/usr/bin/python3", "-c", "import torch"], stderr=subprocess.DEVNULL).returncode != 0:
        sys.exit("error: the comparison needs Debian's python3-torch and libopenblas0-openmp")
    if not os.path.isdir(OPENBLAS):
        sys.exit("error: PyTorch is slow without libopenblas0-openmp; install it")
    jobs.build()
    mode = "ddp" if a.workers > 1 else "single"
    mine, theirs = [], []
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        for i in range(a.rounds):
            mine.append(ours(folder, a.model, a.workers, a.batch, a.micro, a.steps, a.warmup, f"{a.model}-{i}",
                             a.precision))
            theirs.append(pytorch(a.model, mode, a.workers, a.batch, a.steps, a.warmup))
            print(f"round {i + 1}: lockstep {mine[-1]['tokens_per_s']:.0f} tokens/s "
                  f"({100 * mine[-1]['exposed']:.1f} % exposed communication), "
                  f"pytorch {mode} {theirs[-1]['tokens_per_s']:.0f}, "
                  f"ratio {mine[-1]['tokens_per_s'] / theirs[-1]['tokens_per_s']:.2f}", flush=True)
    lockstep = statistics.median(m["tokens_per_s"] for m in mine)
    peer = statistics.median(t["tokens_per_s"] for t in theirs)
    peak = max(m["peak_mb"] for m in mine)
    peer_peak = max(t["peak_rss_mb"] for t in theirs)
    print(json.dumps(dict(model=a.model, precision=a.precision, workers=a.workers, batch_a_worker=a.batch,
                          lockstep_tokens_per_s=round(lockstep),
                          pytorch_mode=mode, pytorch_tokens_per_s=round(peer), ratio=round(lockstep / peer, 3),
                          peak_mb=round(peak), pytorch_peak_mb=round(peer_peak), peak_ratio=round(peak / peer_peak, 3),
                          exposed_communication=round(statistics.median(m["exposed"] for m in mine), 4))))


if __name__ == "__main__":
    main()
