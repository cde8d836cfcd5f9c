"""Tests of whole jobs: real daemons, real gRPC, real collectives."""

BINARIES = [
    "//cli:lockstep",
    "//coordinator:lockstep-coordinator",
    "//worker:lockstep-worker",
]

def e2e_test(name, size = "medium", data = [], **kwargs):
    """Runs `name`.py, with harness.py beside it and the binaries at hand."""
    native.sh_test(
        name = name,
        size = size,
        srcs = ["run_python.sh"],
        args = ["$(location %s.py)" % name],
        data = BINARIES + ["harness.py", name + ".py", ":lockstep_py"] + data,
        # Several daemons each: two at once would fight for the cores.
        tags = ["cpu:2"],
        **kwargs
    )
