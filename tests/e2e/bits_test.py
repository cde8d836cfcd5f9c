"""The same bits, whatever the number of workers and threads, buckets, overlap, failures."""
import csv
import itertools
import os
import signal
import unittest

import harness


class BitsTest(harness.JobTest):
    def hash_with(self, name, workers=1, threads=1, seed=7, steps=12, flags=(), **parallel):
        spec = self.spec(name, numerics={"seed": seed}, schedule={"max_steps": steps},
                         parallel={"min_workers": workers, **parallel})
        self.run_job(spec, *flags, workers=workers, threads=threads)
        return self.hash_of(spec)

    def test_nothing_but_the_job_decides(self):
        base = self.hash_with("base")

        variants = {
            "two-workers": dict(workers=2),
            "three-workers-uneven": dict(workers=3),  # 8 micro-batches: 3, 3, 2.
            "four-workers": dict(workers=4),
            "tiny-buckets": dict(workers=3, bucket_bytes=1024),
            "no-overlap": dict(workers=2, overlap=False),
            "two-threads": dict(threads=2),
            "two-by-two": dict(workers=2, threads=2, bucket_bytes=64 << 10),
            "recompute": dict(workers=2, recompute="BLOCK"),
            "zero-1": dict(workers=2, zero_stage=1),
            "zero-2": dict(workers=3, zero_stage=2, bucket_bytes=64 << 10),
            "zero-3": dict(workers=3, zero_stage=3, recompute="BLOCK"),
            "zero-3-tcp": dict(workers=2, zero_stage=3, flags=("--collectives", "tcp")),
            "tcp": dict(workers=3, flags=("--collectives", "tcp")),
            "shared-memory": dict(workers=3, flags=("--collectives", "shared-memory")),
        }
        for name, variant in variants.items():
            with self.subTest(name):
                self.assertEqual(self.hash_with(name, **variant), base)

        self.assertNotEqual(self.hash_with("other-seed", seed=8), base)

    def test_weights_and_optimizer_state_at_every_stage_and_world(self):
        """LOCKSTEP_ALL=1, as --test_env, for every stage with every number of workers."""
        models = {
            "gpt2": {"gpt2": {"vocab_size": 256, "n_embd": 48, "n_layer": 3, "n_head": 4}},
            "llama": {"llama": {"vocab_size": 256, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
                                "num_key_value_heads": 2, "intermediate_size": 88}},
        }
        for model in models:
            states = {}
            for stage, world in itertools.product(range(4), range(1, 5)):
                if not os.environ.get("LOCKSTEP_ALL") and stage != (world - 1) % 4:
                    continue
                recompute = "BLOCK" if (stage + world) % 2 else "NONE"
                # What splits a unit evenly for none of the worlds.
                bucket_bytes = (25 << 20, 1028, 10_004, 64 << 10)[(stage + 2 * world) % 4]
                spec = self.spec(f"{model}-{stage}-{world}", schedule={"max_steps": 20},
                                 numerics={"dropout": 0.1, "seed": 7},
                                 parallel={"min_workers": world, "zero_stage": stage, "recompute": recompute,
                                           "bucket_bytes": bucket_bytes})
                spec["model"] = models[model]
                self.run_job(spec, workers=world)
                folder = os.path.join(spec["output_directory"], "checkpoints", "step-000000000020")
                states[stage, world] = self.lockstep("hash", folder, coordinator=False).stdout.replace(folder, "")
            print(model, len(states), set(states.values()))
            self.assertEqual(len(set(states.values())), 1, states)

    def test_recomputing_takes_less_memory_and_it_is_constant(self):
        held = {}
        self.start_cluster(1)
        for recompute in ("NONE", "BLOCK"):
            spec = self.spec("memory-" + recompute, parallel={"recompute": recompute},
                             model={"gpt2": {"vocab_size": 256, "n_embd": 64, "n_layer": 6, "n_head": 4}})
            job = self.submit(spec)
            self.await_state(job, "COMPLETED")
            steps = {int(row["device_memory_bytes"]) for row in self.metrics(job)}
            self.assertEqual(len(steps), 1)  # All is taken before the first step.
            held[recompute] = steps.pop()
        # Five of six blocks' (64 x (1 + 3 + 1 + 1 + 1 + 4 + 4) + 6) x 32 tokens x 4 bytes are kept no more.
        self.assertGreater(held["NONE"] - held["BLOCK"], 5 * 64 * 15 * 32 * 4)

    def test_dropout_is_a_function_of_the_sample(self):
        hashes = set()
        for name, workers, threads in (("one", 1, 2), ("two", 2, 1), ("three", 3, 1)):
            spec = self.spec("dropout-" + name, numerics={"dropout": 0.1, "seed": 7},
                             parallel={"min_workers": workers, "recompute": "BLOCK" if workers == 2 else "NONE"})
            self.run_job(spec, workers=workers, threads=threads)
            hashes.add(self.hash_of(spec))
        self.assertEqual(len(hashes), 1)
        self.assertNotIn(self.hash_with("without"), hashes)

    def test_a_llama_has_the_same_bits_too(self):
        llama = {"llama": {"vocab_size": 256, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                           "num_key_value_heads": 2, "intermediate_size": 88}}
        hashes = set()
        for name, workers, threads, bucket_bytes in (("one", 1, 1, 25 << 20), ("two", 2, 2, 64 << 10),
                                                     ("three", 3, 1, 1024)):
            spec = self.spec("llama-" + name, parallel={"min_workers": workers, "bucket_bytes": bucket_bytes})
            spec["model"] = llama
            self.run_job(spec, workers=workers, threads=threads)
            hashes.add(self.hash_of(spec))
        self.assertEqual(len(hashes), 1)

    def test_buckets_that_split_units_change_nothing(self):
        # A block of 7 MiB: in 64 KiB, 1 MiB and 25 MiB it is cut quite differently.
        hashes, buckets = set(), []
        for workers, bucket_bytes in ((1, 25 << 20), (2, 64 << 10), (3, 1 << 20)):
            spec = self.spec(f"buckets-{bucket_bytes}", schedule={"max_steps": 4, "warmup_steps": 1},
                             model={"gpt2": {"vocab_size": 256, "n_embd": 384, "n_layer": 1, "n_head": 4}},
                             parallel={"min_workers": workers, "bucket_bytes": bucket_bytes})
            csv_path = self.path(f"{bucket_bytes}.csv")
            self.run_job(spec, "--metrics", csv_path, workers=workers)
            hashes.add(self.hash_of(spec))
            with open(csv_path) as f:
                buckets.append({int(row["bucket_count"]) for row in csv.DictReader(f)})
        self.assertEqual(len(hashes), 1)
        self.assertEqual(buckets[0], {3})
        self.assertGreater(min(buckets[1]), 100)
        self.assertGreater(min(buckets[2]), 6)

    def test_reductions_begin_while_backward_goes_on(self):
        self.start_cluster(2)
        for overlap in (True, False):
            # Large enough for a backward of some milliseconds a block.
            spec = self.spec(f"overlap-{overlap}", batch={"global_batch_size": 8, "micro_batch_size": 4},
                             model={"gpt2": {"vocab_size": 256, "n_embd": 192, "n_layer": 4, "n_head": 4}},
                             parallel={"min_workers": 2, "overlap": overlap})
            job = self.submit(spec)
            self.await_state(job, "COMPLETED")

            rows = self.metrics(job)
            self.assertEqual(len(rows), 24)
            self.assertEqual({int(r["bucket_count"]) for r in rows}, {6})  # Head, four blocks, embedding.
            overlapped = sum(int(r["overlapped_bucket_count"]) for r in rows)
            if overlap:
                # All but the embedding's could; a busy machine may delay some.
                self.assertGreater(overlapped, len(rows))
            else:
                self.assertEqual(overlapped, 0)
        traces = [line for line in self.daemons[1].log().splitlines() if "step trace" in line]
        self.assertEqual(len(traces), 2)
        self.assertIn("head:", traces[0])
        self.assertIn("backward_end=", traces[0])
        print(traces[0])

    # Long enough to be hit in the middle.
    LONG = 250

    def test_a_killed_worker_changes_nothing(self):
        base = self.hash_with("base", steps=self.LONG)
        self.start_cluster(3)
        spec = self.spec("killed", schedule={"max_steps": self.LONG}, parallel={"min_workers": 3})

        job = self.submit(spec)
        self.await_step(job, 3)
        self.daemons[2].kill(signal.SIGKILL)  # Agent and, with it, trainer of w1.
        self.start_worker("w1")
        done = self.await_state(job, "COMPLETED")

        self.assertEqual(self.hash_of(spec), base)
        self.assertGreater(int(done["generation"]), 1)
        # Each step is listed once, by the ranks of the generation that took it last.
        rows = self.metrics(job)
        self.assertEqual(sorted((int(r.get("step", 0)), int(r.get("rank", 0))) for r in rows),
                         [(s, r) for s in range(self.LONG) for r in range(3)])

    def test_a_killed_trainer_changes_nothing(self):
        base = self.hash_with("base", steps=self.LONG)
        self.start_cluster(2)
        spec = self.spec("killed", schedule={"max_steps": self.LONG}, parallel={"min_workers": 2})

        job = self.submit(spec)
        self.await_step(job, 2)
        children = self.daemons[1].children()
        self.assertEqual(len(children), 1)
        os.kill(children[0], signal.SIGKILL)
        done = self.await_state(job, "COMPLETED")

        self.assertEqual(self.hash_of(spec), base)
        self.assertGreater(int(done["generation"]), 1)
        deaths = {w["name"]: w.get("trainer_death_count", 0) for w in self.workers()}
        self.assertEqual(deaths, {"workers/w0": 1, "workers/w1": 0})


if __name__ == "__main__":
    unittest.main(verbosity=2)
