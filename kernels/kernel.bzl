"""One operation: its interface, backends, double-precision reference and test."""

load("//bazel:cc.bzl", "cc_library", "cc_test")

def kernel(name, deps = [], cpu_deps = [], reference_deps = [], test_deps = [], test_size = "small"):
    """Makes :`name`, :`name`_reference (for tests) and :`name`_test.

    Args:
      name: of the operation; the files are named after it.
      deps: of its interface and argument checks, beyond what all have.
      cpu_deps: of its CPU implementation, likewise.
      reference_deps: of its reference, likewise.
      test_deps: of its test, likewise.
      test_size: of its test.
    """
    cc_library(
        name = name,
        srcs = [
            name + ".cc",
            "cpu/" + name + ".cc",
            "cpu/" + name + ".h",
        ],
        hdrs = [name + ".h"],
        deps = depset(deps + cpu_deps + [
            ":arguments",
            ":cpu_device",
            ":cpu_targets",
            ":cpu_thread_pool",
            ":device",
            "//bazel/deps:absl",
            "//bazel/deps:highway",
            "//common:status",
        ]).to_list(),
    )
    cc_library(
        name = name + "_reference",
        testonly = True,
        srcs = [name + "_reference.cc"],
        hdrs = [name + "_reference.h"],
        deps = [":" + name] + deps + reference_deps,
    )
    cc_test(
        name = name + "_test",
        size = test_size,
        srcs = [name + "_test.cc"],
        deps = depset(test_deps + [
            ":" + name,
            ":" + name + "_reference",
            ":device",
            ":kernel_testing",
        ]).to_list(),
    )
