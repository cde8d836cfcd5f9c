"""The one list of compiler options; every C++ target of the project uses it."""

WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wshadow",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    # Designated initialisers leave the defaults to the struct, on purpose.
    "-Wno-missing-field-initializers",
    # g++ 12 reports these in correct code of the standard library (bug 105651).
    "-Wno-restrict",
]

# An element's bits must not depend on how the compiler groups a sum.
COPTS = WARNINGS + ["-ffp-contract=off"]
