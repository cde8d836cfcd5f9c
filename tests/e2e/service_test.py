"""The service as its users meet it: the queue, retries, another language, a coordinator that dies."""
import json
import os
import signal
import sys
import threading
import time
import unittest
import uuid

import harness

sys.path.insert(0, os.path.join(harness.TOP, "tests/e2e"))
import grpc  # noqa: E402
from google.protobuf import json_format  # noqa: E402
from lockstep.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc, monitor_service_pb2  # noqa: E402
from lockstep.v1 import monitor_service_pb2_grpc  # noqa: E402


class ServiceTest(harness.JobTest):
    def test_two_jobs_on_two_workers_run_one_after_the_other(self):
        self.start_cluster(2)
        first = self.submit(self.spec("first", parallel={"min_workers": 2}))
        second = self.submit(self.spec("second", parallel={"min_workers": 2}))

        self.await_state(first, "RUNNING", "COMPLETED")
        waiting = self.get(second)
        if self.get(first)["state"] != "COMPLETED":
            self.assertEqual(waiting["state"], "QUEUED")
            self.assertIn("needs 2 workers", waiting["state_reason"])
            self.assertIn(first, waiting["state_reason"])
        first_done = self.await_state(first, "COMPLETED")
        second_done = self.await_state(second, "COMPLETED")

        self.assertLessEqual(first_done["end_time"], second_done["start_time"])

    def test_a_job_that_needs_three_workers_waits_and_says_for_what(self):
        self.start_cluster(2)
        job = self.submit(self.spec("three", parallel={"min_workers": 3}))
        # It holds up nobody: a later job that fits is placed.
        small = self.submit(self.spec("small", parallel={"min_workers": 2}))
        self.await_state(small, "COMPLETED")

        waiting = self.get(job)
        self.assertEqual(waiting["state"], "QUEUED")
        self.assertIn("needs 3 workers: 2 are present", waiting["state_reason"])

        self.start_worker("w2")
        self.await_state(job, "COMPLETED")

    def test_a_python_client_submits_watches_and_repeats(self):
        self.start_cluster(2)
        channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        jobs = job_service_pb2_grpc.JobServiceStub(channel)
        monitor = monitor_service_pb2_grpc.MonitorServiceStub(channel)
        spec = json_format.ParseDict(self.spec("python", parallel={"min_workers": 2}), job_pb2.JobSpec())
        request = job_service_pb2.SubmitJobRequest(spec=spec, request_id=str(uuid.uuid4()))

        job = jobs.SubmitJob(request)
        again = jobs.SubmitJob(request)
        self.assertEqual(job.name, again.name)
        other = job_service_pb2.SubmitJobRequest(spec=spec, request_id=request.request_id)
        other.spec.numerics.seed = 99
        with self.assertRaises(grpc.RpcError) as raised:
            jobs.SubmitJob(other)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.ALREADY_EXISTS)

        states = [r.job.state for r in jobs.WatchJob(job_service_pb2.WatchJobRequest(name=job.name), timeout=120)]
        self.assertEqual(states[-1], job_pb2.Job.COMPLETED)
        rows = []
        for message in monitor.WatchStepMetrics(monitor_service_pb2.WatchStepMetricsRequest(job=job.name), timeout=120):
            rows += message.step_metrics
        self.assertEqual(sorted((r.step, r.rank) for r in rows), [(s, r) for s in range(12) for r in range(2)])
        listed = jobs.ListJobs(job_service_pb2.ListJobsRequest())
        self.assertEqual([j.name for j in listed.jobs], [job.name])

    def test_a_killed_coordinator_loses_no_job_and_no_step(self):
        coordinator, _ = self.start_cluster(2)
        spec = self.spec("long", schedule={"max_steps": 400}, parallel={"min_workers": 2})
        job = self.submit(spec)
        queued = self.submit(self.spec("queued", parallel={"min_workers": 2}))
        self.await_step(job, 5)

        coordinator.kill(signal.SIGKILL)
        coordinator.wait()
        port = self.port
        time.sleep(1)  # The workers train on meanwhile.
        self.start_coordinator(port=port)
        done = self.await_state(job, "COMPLETED")
        self.await_state(queued, "COMPLETED")

        # The same generation went on, and every step's report arrived.
        self.assertEqual(int(done["generation"]), 1)
        rows = self.metrics(job)
        self.assertEqual(sorted((int(r.get("step", 0)), int(r.get("rank", 0))) for r in rows),
                         [(s, r) for s in range(400) for r in range(2)])
        self.assertEqual({int(r["generation"]) for r in rows}, {1})

    def test_a_coordinator_that_stays_away_costs_no_step(self):
        coordinator, _ = self.start_cluster(2)
        spec = self.spec("alone", parallel={"min_workers": 2})
        job = self.submit(spec)
        self.await_state(job, "RUNNING", "COMPLETED")
        coordinator.kill(signal.SIGKILL)
        coordinator.wait()
        time.sleep(8)  # Longer than any lease: the job trains to its end.
        self.start_coordinator(port=self.port)
        done = self.await_state(job, "COMPLETED")
        self.assertEqual(int(done["generation"]), 1)

    def test_a_coordinator_that_was_stopped_for_a_while_blames_nobody(self):
        coordinator, _ = self.start_cluster(2)
        job = self.submit(self.spec("paused", schedule={"max_steps": 100000}, parallel={"min_workers": 2}))
        self.await_step(job, 5)

        coordinator.kill(signal.SIGSTOP)
        time.sleep(5)  # Longer than the lease.
        coordinator.kill(signal.SIGCONT)
        before = self.step_count(job)
        self.await_step(job, before + 5)
        time.sleep(1)

        now = self.get(job)
        self.assertEqual((now["state"], int(now["generation"]), now.get("failure_count", 0)), ("RUNNING", 1, 0))
        self.lockstep("cancel", job)

    def test_a_trainer_that_hangs_alone_is_replaced(self):
        self.start_coordinator()
        worker = self.start_worker("w0", "--progress-timeout", "2s")
        self.await_workers(1)
        job = self.submit(self.spec("hangs", schedule={"max_steps": 100000}))
        self.await_step(job, 2)
        os.kill(worker.children()[0], signal.SIGSTOP)

        def goes_on():
            now = self.get(job)
            return int(now["generation"]) == 2 and now["state"] == "RUNNING"
        harness.wait_for("a new trainer to train", goes_on)
        self.assertIn("no sign of going on for 2s", worker.log())
        self.lockstep("cancel", job)

    def test_the_way_of_collectives_is_shown_and_can_be_forced(self):
        self.start_coordinator()
        for name, flags in (("w0", ()), ("w1", ()), ("w2", ("--collectives", "tcp"))):
            self.start_worker(name, *flags)
            if name == "w1":
                self.await_workers(2)
                self.assertEqual(self.ways_of_a_job("shared", 2), ["SHARED_MEMORY"] * 2)
        self.await_workers(3)
        self.assertEqual(self.ways_of_a_job("tcp", 3), ["TCP"] * 3)
        log = self.daemons[1].log()
        self.assertIn("collectives=shared-memory", log)
        self.assertRegex(log, r"collectives=tcp .*rank \d: it is told to use TCP")

        self.start_worker("w3", "--collectives", "shared-memory")
        self.await_workers(4)
        job = self.submit(self.spec("refused", parallel={"min_workers": 4}))
        reason = self.await_state(job, "FAILED")["state_reason"]
        self.assertRegex(reason, r"rank \d is told to use shared memory and nothing else")
        self.assertRegex(reason, r"rank \d: it is told to use TCP")

    def ways_of_a_job(self, name, world):
        """What its workers show while it runs; cancels it."""
        job = self.submit(self.spec(name, schedule={"max_steps": 100000}, parallel={"min_workers": world}))
        self.await_step(job, 1)
        ways = [w.get("collectives") for w in self.workers() if w.get("job") == job]
        self.lockstep("cancel", job)
        self.await_workers(world)
        return ways

    def test_cancelling_in_every_state(self):
        self.start_coordinator()
        queued = self.submit(self.spec("queued"))
        self.lockstep("cancel", queued)
        self.assertEqual(self.get(queued)["state"], "CANCELLED")

        self.start_worker("w0")
        self.await_workers(1)
        running_spec = self.spec("running", schedule={"max_steps": 100000})
        running = self.submit(running_spec)
        self.await_step(running, 2)
        watcher = {}
        thread = threading.Thread(
            target=lambda: watcher.update(code=self.lockstep("watch", running, expect=None).returncode))
        thread.start()
        self.lockstep("cancel", running)
        thread.join()
        self.assertEqual(watcher["code"], harness.JOB_CANCELLED)
        self.assertEqual(self.get(running)["state"], "CANCELLED")
        # The worker is free again, and nothing is left behind.
        self.await_workers(1)
        self.assertFalse(os.path.exists(running_spec["output_directory"]))

        done = self.submit(self.spec("done"))
        self.await_state(done, "COMPLETED")
        refused = self.lockstep("cancel", done, expect=None)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("COMPLETED", refused.stderr)

    def test_stragglers_name_the_slow_worker(self):
        _, workers = self.start_cluster(3)
        # Steps that take long enough for every one to be hampered: the score is a median.
        spec = self.spec("straggler", schedule={"max_steps": 100000}, parallel={"min_workers": 3},
                         model={"gpt2": {"vocab_size": 256, "n_embd": 192, "n_layer": 4, "n_head": 4}},
                         batch={"global_batch_size": 12, "micro_batch_size": 1})
        job = self.submit(spec)
        self.await_step(job, 5)
        # One trainer gets a quarter of the time.
        slow = workers[1].children()[0]
        stop = threading.Event()

        def hamper():
            while not stop.is_set():
                os.kill(slow, signal.SIGSTOP)
                time.sleep(0.015)
                os.kill(slow, signal.SIGCONT)
                time.sleep(0.005)
        thread = threading.Thread(target=hamper)
        thread.start()
        try:
            def named():
                out = json.loads(self.lockstep("stragglers", job, "--window", "20", "--threshold", "2",
                                               "--json").stdout)
                slow_ones = [r for r in out["ranks"] if r.get("straggler")]
                return [r["worker"] for r in slow_ones] == ["workers/w1"]
            harness.wait_for("the slow worker to be named", named)
        finally:
            stop.set()
            thread.join()
        self.lockstep("cancel", job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
