"""Cases that are known to fail, and why. `table.py` lists them; a failure that isn't here fails the tests."""

# (operator, dtype, kind of check, reason), with wildcards.
KNOWN: list[tuple[str, str, str, str]] = [
    ("linalg.lstsq*", "*", "out", "The CPU's solution of a tall system has gaps: it lies in a taller matrix."),
    ("masked_fill", "*", "errors", "Whether a complex value in a tensor is real is not known before it is computed."),
    ("chalf", "*", "*", "XLA has no complex numbers of half precision (complex32)."),
    (
        "nn.functional.scaled_dot_product_attention",
        "float32",
        "gradgrad",
        "The gradient of the fused attention has none itself, as on other devices; the CPU takes the composite for "
        "three dimensions. `sdpa_kernel(SDPBackend.MATH)` has all of them.",
    ),
    ("to_sparse", "*", "*", "The device has no sparse layouts; they are refused by name."),
    ("sparse.*", "*", "*", "The device has no sparse layouts; they are refused by name."),
]
