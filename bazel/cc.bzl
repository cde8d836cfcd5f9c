"""C++ rules of this project: Bazel's own with the project's compiler options.

Private by default; tests link GoogleTest and its main.
"""

load("//bazel:copts.bzl", "COPTS")

def cc_library(copts = [], **kwargs):
    # Static only: nothing here is loaded as a shared library, and a second,
    # position-independent object of every file would double the build.
    native.cc_library(copts = COPTS + copts, linkstatic = True, **kwargs)

def cc_binary(copts = [], **kwargs):
    native.cc_binary(copts = COPTS + copts, **kwargs)

def cc_test(copts = [], deps = [], size = "small", **kwargs):
    native.cc_test(
        copts = COPTS + copts,
        size = size,
        deps = deps + ["//bazel/deps:gtest_main"],
        **kwargs
    )
