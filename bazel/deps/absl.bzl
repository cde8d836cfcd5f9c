"""The shared libraries of abseil that the project uses."""

ABSL_LINKOPTS = ["-Wl,--push-state,--as-needed"] + ["-labsl_" + name for name in [
    "bad_optional_access",
    "bad_variant_access",
    "base",
    "cord",
    "hash",
    "int128",
    "raw_hash_set",
    "raw_logging_internal",
    "status",
    "statusor",
    "str_format_internal",
    "strings",
    "strings_internal",
    "synchronization",
    "throw_delegate",
    "time",
    "time_zone",
]] + ["-Wl,--pop-state"]
