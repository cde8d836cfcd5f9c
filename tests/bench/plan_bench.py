#!/usr/bin/env python3
"""What `lockstep plan` says of jobs, beside what the jobs then report: memory, traffic and time.

    tests/bench/plan_bench.py [--model small] [--workers 1 2] [--stages 0 1 2 3] [--steps 8]

One line a job: device memory and the peak of the trainer's resident set (of the worker with the most), bytes a parameter
of parameters, sums and moments, bytes sent a step, reductions that needed 64 bits, the median step's time, its share of
exposed communication, and its ratio to the first stage's with as many workers.  Nothing else should run.
"""
import argparse
import json
import random
import statistics
import sys

import jobs

# Width, blocks, heads, vocabulary.
MODELS = {"tiny": (256, 4, 4, 256), "small": (512, 8, 8, 8192), "gpt2": (768, 12, 12, 50257)}
LENGTH = 256
WARM_UP = 2
MIB = 2 ** 20


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", choices=MODELS, default="small")
    p.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    p.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--micro-batches", type=int, default=4, help="of a step, all workers together")
    p.add_argument("--micro", type=int, default=2, help="sequences of a micro-batch")
    p.add_argument("--precision", choices=["FLOAT32", "BFLOAT16"], default="FLOAT32")
    a = p.parse_args()
    harness = jobs.build_with_harness()

    class Bench(harness.JobTest):
        def case(self, workers, stage):
            width, layers, heads, vocabulary = MODELS[a.model]
            spec = self.spec(f"s{stage}w{workers}",
                             model={"gpt2": {"vocab_size": vocabulary, "n_embd": width, "n_layer": layers,
                                             "n_head": heads}},
                             data={"files": [self.path("tokens")], "format": "TOKENS_U16", "sequence_length": LENGTH,
                                   "held_out_fraction": 0},
                             batch={"global_batch_size": a.micro_batches * a.micro, "micro_batch_size": a.micro},
                             schedule={"max_steps": a.steps, "warmup_steps": 0, "evaluate_every_steps": 0,
                                       "peak_learning_rate": 1e-4},
                             numerics={"precision": a.precision},
                             parallel={"min_workers": workers, "zero_stage": stage})
            plan = json.loads(self.lockstep("plan", self.job_file(spec), "--json").stdout)
            row, = [r for r in plan["rows"] if r["zero_stage"] == stage and r["worker_count"] == workers]
            memory = {k: int(v) for k, v in row["memory"].items()}
            traffic = row["traffic"]
            job = self.submit(spec)
            self.await_state(job, "COMPLETED", patience_s=3600)
            steps = self.metrics(job)
            late = [s for s in steps if int(s["step"]) >= WARM_UP and int(s["step"]) < a.steps - 1]

            def ms(field):
                return 1e3 * statistics.median(float(s[field].rstrip("s")) for s in late)
            seen_device = max(int(s["device_memory_bytes"]) for s in steps)
            seen_peak = max(int(s["peak_resident_bytes"]) for s in steps)
            step = ms("step_duration")
            state = sum(memory[k] for k in ("parameters_bytes", "accumulators_bytes", "optimizer_bytes"))
            buckets = sum(int(s["bucket_count"]) for s in steps)
            wide = sum(int(s["wide_bucket_count"]) for s in steps)
            sent = max(int(s["sent_bytes"]) for s in late)
            planned_sent = sum(int(traffic[k]) for k in ("reduction_bytes", "gather_bytes", "commit_bytes"))
            base = self.base.setdefault(workers, step)
            print(f"workers {workers} stage {stage}: device {seen_device / MIB:.1f} MiB"
                  f" ({'as planned' if seen_device == memory['device_bytes'] else 'PLANNED ' + str(memory['device_bytes'])}),"
                  f" peak {seen_peak / MIB:.0f} MiB (planned {memory['training_bytes'] / MIB:.0f},"
                  f" {100 * (memory['training_bytes'] / seen_peak - 1):+.1f} %),"
                  f" {state / int(plan['parameter_count']):.2f} bytes a parameter;"
                  f" sent {sent / MIB:.2f} MiB (planned {planned_sent / MIB:.2f}), {wide} of {buckets} reductions wide;"
                  f" step {step:.1f} ms (predicted {1e3 * row['time']['step_seconds']:.1f}, {row['time']['bound']}),"
                  f" {step / base:.3f} of the first,"
                  f" {100 * ms('exposed_communication') / step:.1f} % exposed", flush=True)

        def runTest(self):
            self.base = {}
            rng = random.Random(1)
            vocabulary = MODELS[a.model][3]
            self.write("tokens", b"".join(rng.randrange(vocabulary).to_bytes(2, "little") for _ in range(300_000)))
            for workers in a.workers:
                for stage in a.stages:
                    # A process's peak is that of all its jobs.
                    for daemon in reversed(self.daemons):
                        daemon.stop()
                    self.daemons.clear()
                    self.start_cluster(workers)
                    self.case(workers, stage)

    result = harness.unittest.TextTestRunner(verbosity=0).run(Bench())
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
