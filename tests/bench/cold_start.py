#!/usr/bin/env python3
"""How long it takes from `lockstep submit` to the first step, on workers that run already.

    tests/bench/cold_start.py [--rounds 3] [--model tiny] [--workers 1]

tiny starts from fresh weights; gpt2 from a Hugging Face folder that is in the page cache. The time is from before the
command starts to when the first step begins, on this machine's clock.
"""
import argparse
import datetime
import json
import os
import random
import statistics
import sys
import time

import jobs

MODELS = {"tiny": (256, 4, 4, 256), "gpt2": (768, 12, 12, 50257)}
LENGTH = 256


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", choices=MODELS, default="tiny")
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    harness = jobs.build_with_harness()

    class Bench(harness.JobTest):
        def job(self, name, model):
            return self.spec(name, model=model,
                             data={"files": [self.path("tokens")], "format": "TOKENS_U16", "sequence_length": LENGTH,
                                   "held_out_fraction": 0},
                             batch={"global_batch_size": a.workers, "micro_batch_size": 1},
                             schedule={"max_steps": 1, "warmup_steps": 0, "evaluate_every_steps": 0},
                             parallel={"min_workers": a.workers})

        def runTest(self):
            width, layers, heads, vocabulary = MODELS[a.model]
            rng = random.Random(1)
            self.write("tokens", b"".join(rng.randrange(vocabulary).to_bytes(2, "little") for _ in range(100_000)))
            model = {"gpt2": {"vocab_size": vocabulary, "n_embd": width, "n_layer": layers, "n_head": heads}}
            self.start_cluster(a.workers)
            if a.model == "gpt2":
                spec = self.job("source", model)
                self.await_state(self.submit(spec), "COMPLETED")
                model = {"hugging_face_folder": os.path.join(spec["output_directory"], "model")}
            seconds = []
            for i in range(a.rounds):
                self.await_workers(a.workers)
                spec = self.job(f"job{i}", model)
                if "hugging_face_folder" in model:
                    spec["model"] = model
                before = time.time()
                job = self.submit(spec)
                self.await_state(job, "COMPLETED")
                step = self.metrics(job)[0]
                end = datetime.datetime.fromisoformat(step["end_time"].split(".")[0].rstrip("Z") + "+00:00").timestamp()
                end += float("0." + (step["end_time"].rstrip("Z").split(".") + ["0"])[1])
                seconds.append(end - float(step["step_duration"].rstrip("s")) - before)
            print(json.dumps(dict(model=a.model, workers=a.workers,
                                  submit_to_first_step_s=[round(s, 3) for s in seconds],
                                  median_s=round(statistics.median(seconds), 3))))

    result = harness.unittest.TextTestRunner(verbosity=0).run(Bench())
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
