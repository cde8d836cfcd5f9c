"""What benchmarks of whole jobs share."""
import os
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def build():
    """Builds the command and the daemons."""
    subprocess.run(["bazel", "build", "--noshow_progress", "--ui_event_filters=-info", "//cli:lockstep",
                    "//coordinator:lockstep-coordinator", "//worker:lockstep-worker"], check=True, cwd=TOP)


def build_with_harness():
    """Builds, and returns the harness of the end-to-end tests, which wants to be at the top of what was built."""
    build()
    os.chdir(os.path.join(TOP, "bazel-bin"))
    sys.path.insert(0, os.path.join(TOP, "tests/e2e"))
    import harness
    return harness
