"""Plans: what is said before a job runs is what is seen when it does."""
import json
import os
import re
import sys
import uuid

import harness

sys.path.insert(0, os.path.join(harness.TOP, "tests/e2e"))
import grpc  # noqa: E402
from google.protobuf import json_format  # noqa: E402
from lockstep.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc  # noqa: E402


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

    def test_the_smallest_changes_make_a_refused_job_run(self):
        spec = self.spec("large", model={"gpt2": {"vocab_size": 256, "n_embd": 256, "n_layer": 6, "n_head": 4}},
                         data={"held_out_fraction": 0}, schedule={"max_steps": 2, "warmup_steps": 0},
                         batch={"global_batch_size": 16, "micro_batch_size": 8})
        need = int(self.row(self.plan(spec, "--memory", "100"), 0, 1)["memory"]["peak_bytes"])
        memory = need - (10 << 20)
        self.start_coordinator()
        for i in range(2):
            self.start_worker(f"w{i}", "--memory", f"{memory / 2 ** 30:.6f}")
        self.await_workers(2)

        refused = self.lockstep("submit", self.job_file(spec), expect=harness.USAGE)
        plan = self.plan(spec, expect=harness.USAGE)

        self.assertFalse(plan["fits"])
        changes = dict(re.match(r"([a-z_.]+): (\w+)", line).groups() for line in plan["advice"])
        self.assertEqual(set(changes), {"parallel.recompute", "batch.micro_batch_size", "parallel.min_workers"})
        for field, value in changes.items():
            self.assertIn(f"{field}: {value}", refused.stderr)
            out = self.lockstep("submit", self.job_file(spec), "--set", f"{field}={value}",
                                "--set", f"output_directory={self.path('out-' + field)}").stdout
            job = out.strip()
            done = self.await_state(job, "COMPLETED")
            steps = self.metrics(job)
            self.assertEqual(len({s["rank"] for s in steps}), done["spec"]["parallel"]["min_workers"])
            self.assertLess(max(int(s["peak_resident_bytes"]) for s in steps), 1.05 * memory, field)

    def test_a_folder_that_nobody_sized_is_refused_by_its_workers(self):
        first = self.spec("first", schedule={"max_steps": 2, "warmup_steps": 0},
                          model={"gpt2": {"vocab_size": 256, "n_embd": 256, "n_layer": 6, "n_head": 4}})
        self.run_job(first)
        self.start_coordinator()
        self.start_worker("w0", "--memory", "0.1")
        self.await_workers(1)
        spec = self.spec("again")
        spec["model"] = {"hugging_face_folder": os.path.join(self.path("out-first"), "model")}
        # The command would say its sizes.
        self.assertIn("does not fit", self.lockstep("submit", self.job_file(spec), expect=harness.USAGE).stderr)
        jobs = job_service_pb2_grpc.JobServiceStub(grpc.insecure_channel(f"127.0.0.1:{self.port}"))

        job = jobs.SubmitJob(job_service_pb2.SubmitJobRequest(
            spec=json_format.ParseDict(spec, job_pb2.JobSpec()), request_id=str(uuid.uuid4())))

        failed = self.await_state(job.name, "FAILED")
        self.assertRegex(failed["state_reason"], "does not fit this worker: at ZeRO stage 0 on 1 worker it needs .* MiB")
        self.assertIn("what would make it fit", failed["state_reason"])

    def test_sizes_that_are_not_the_folders_are_refused(self):
        first = self.spec("first", schedule={"max_steps": 2, "warmup_steps": 0})
        self.run_job(first)
        self.start_cluster(1)
        spec = self.spec("again")
        spec["model"] = {"hugging_face_folder": os.path.join(self.path("out-first"), "model")}
        sizes = self.plan(spec)["spec"]["model"]["sizes"]
        self.assertEqual((sizes["model_type"], sizes["hidden_size"]), ("gpt2", "32"))
        spec["model"]["sizes"] = {**sizes, "num_hidden_layers": "1"}
        jobs = job_service_pb2_grpc.JobServiceStub(grpc.insecure_channel(f"127.0.0.1:{self.port}"))

        job = jobs.SubmitJob(job_service_pb2.SubmitJobRequest(
            spec=json_format.ParseDict(spec, job_pb2.JobSpec()), request_id=str(uuid.uuid4())))

        self.assertIn("model.sizes: expected what the model's folder has",
                      self.await_state(job.name, "FAILED")["state_reason"])

    def test_times_are_predicted_from_what_the_workers_measured(self):
        self.start_cluster(2)
        for worker in self.workers():
            rates = worker["device"]["rates"]
            for rate in ("float32_flops", "memory_bytes", "shared_memory_bytes", "network_bytes"):
                self.assertGreater(rates[rate + "_per_second"], 0, rate)

        plan = self.plan(self.spec("timed", parallel={"min_workers": 1, "max_workers": 2}))

        self.assertEqual(plan["worker"]["flops_per_second"],
                         min(w["device"]["rates"]["float32_flops_per_second"] for w in self.workers()))
        for row in plan["rows"]:
            time = row["time"]
            self.assertGreater(time["step_seconds"], 0)
            self.assertAlmostEqual(time["job_seconds"], 12 * time["step_seconds"])
            self.assertIn(time["bound"], ("MATMUL", "MEMORY", "COLLECTIVE"))
            self.assertEqual(time["collective_seconds"] > 0, row["worker_count"] > 1)

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
