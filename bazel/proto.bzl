"""C++ code of .proto files, by Debian's protoc and gRPC plugin."""

def cc_proto_library(name, srcs, deps = [], grpc = False, visibility = None):
    """Messages, and with `grpc` services, of `srcs` as one cc_library.

    Args:
      name: of the library.
      srcs: the .proto files; imports are written from the top of the tree.
      deps: other cc_proto_library targets whose files `srcs` import.
      grpc: also make the service stubs.
      visibility: of the library.
    """
    native.filegroup(
        name = name + "_protos",
        srcs = srcs + [d + "_protos" for d in deps],
        visibility = ["//visibility:public"],
    )
    package = native.package_name()

    # The import root: `proto/` for the API, the top for internal messages, so
    # that the API's files are found as lockstep/v1/..., as other languages do.
    stems = [s[:-len(".proto")] for s in srcs]
    outs = []
    for s in stems:
        outs += [s + ".pb.h", s + ".pb.cc"]
        if grpc:
            outs += [s + ".grpc.pb.h", s + ".grpc.pb.cc"]
    root = "proto" if package == "proto" else "."
    out_root = "$(RULEDIR)" if package == "proto" else "$(GENDIR)"
    command = "protoc -Iproto -I. --cpp_out=" + out_root
    if grpc:
        command += " --grpc_out=" + out_root + " --plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin)"
    command += " " + " ".join(["$(location %s)" % s for s in srcs])
    native.genrule(
        name = name + "_gen",
        srcs = srcs + [":" + name + "_protos"],
        outs = outs,
        cmd = command,
        message = "Generating C++ of " + root,
    )

    # Not our code: compiled without our warnings.
    native.cc_library(
        name = name,
        srcs = [o for o in outs if o.endswith(".cc")],
        hdrs = [o for o in outs if o.endswith(".h")],
        copts = ["-w"],
        linkstatic = True,
        includes = ["."] if package == "proto" else [],
        deps = deps + (["//bazel/deps:grpc"] if grpc else []) + ["//bazel/deps:protobuf"],
        visibility = visibility,
    )
