"""Plans: what is said before a job runs is what is seen when it does."""
import json
import os

import harness


class PlanTest(harness.JobTest):
    def plan(self, spec, *flags, expect=harness.OK):
        return json.loads(self.lockstep("plan", self.job_file(spec), "--json", *flags, expect=expect).stdout)

    def row(self, plan, stage, workers):
        return [r for r in plan["rows"] if r["zero_stage"] == stage and r["worker_count"] == workers][0]

    def test_memory_and_traffic_are_as_planned(self):
        for stage in (0, 3):
            self.start_cluster(2)
            # Large enough that what the process takes beside is not the most.
            spec = self.spec(f"planned-{stage}",
                             model={"gpt2": {"vocab_size": 512, "n_embd": 384, "n_layer": 6, "n_head": 6}},
                             data={"held_out_fraction": 0}, schedule={"max_steps": 3, "warmup_steps": 0},
                             parallel={"min_workers": 2, "zero_stage": stage})
            planned = self.row(self.plan(spec), stage, 2)

            job = self.submit(spec)
            self.await_state(job, "COMPLETED")
            steps = self.metrics(job)

            self.assertEqual({s["device_memory_bytes"] for s in steps if s["rank"] == 0},
                             {planned["memory"]["device_bytes"]})
            peak = max(int(s["peak_resident_bytes"]) for s in steps)
            self.assertAlmostEqual(int(planned["memory"]["training_bytes"]) / peak, 1, delta=0.1)
            traffic = planned["traffic"]
            sent = sum(int(traffic[k]) for k in ("reduction_bytes", "gather_bytes", "commit_bytes"))
            narrow = [int(s["sent_bytes"]) for s in steps if int(s["step"]) == 1 and not s["wide_bucket_count"]]
            self.assertEqual(len(narrow), 2, steps)
            self.assertEqual(max(narrow), sent)
            for daemon in reversed(self.daemons):
                daemon.stop()
            self.daemons.clear()

    def test_a_job_that_fits_no_worker_is_refused_with_its_plan(self):
        self.start_cluster(1)
        spec = self.spec("huge", model={"gpt2": {"vocab_size": 256, "n_embd": 65536, "n_layer": 1000, "n_head": 64}})

        refused = self.lockstep("submit", self.job_file(spec), expect=harness.USAGE)
        planned = self.lockstep("plan", self.job_file(spec), expect=harness.USAGE)

        for text in (refused.stderr, planned.stdout):
            self.assertIn("ZERO WORKERS", text)
            self.assertIn("tensor or pipeline parallelism", text)
        self.assertEqual(json.loads(self.lockstep("list", "--json").stdout)["jobs"], [])

    def test_a_stage_is_chosen_and_kept(self):
        self.start_cluster(2)
        job = self.submit(self.spec("chosen", parallel={"min_workers": 2}))

        done = self.await_state(job, "COMPLETED")

        self.assertEqual(done["spec"]["parallel"]["zero_stage"], 0)

    def test_a_folder_is_planned_where_it_can_be_read(self):
        spec = self.spec("first", schedule={"max_steps": 2, "warmup_steps": 0})
        self.run_job(spec)
        again = self.spec("again", model={"hugging_face_folder": os.path.join(self.path("out-first"), "model")})
        again["model"].pop("gpt2")

        from_folder = self.plan(again, "--memory", "1")
        from_fields = self.plan(spec, "--memory", "1")

        self.assertEqual(from_folder["rows"], from_fields["rows"])


if __name__ == "__main__":
    harness.main()
