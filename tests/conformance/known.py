"""Cases that are known to fail, and why. `table.py` lists them; a failure that isn't here fails the tests."""

# (operator, dtype, kind of check, reason), with wildcards.
KNOWN: list[tuple[str, str, str, str]] = [
    ("linalg.lstsq*", "*", "out", "The CPU's solution of a tall system has gaps: it lies in a taller matrix."),
    *(
        ("*polygamma.*", dtype, kind, "At negative integers, its poles, the CPU's trigamma is large and finite.")
        for dtype in ("int8", "int16")
        for kind in ("forward", "out")
    ),
    ("logcumsumexp", "complex64", "backward", "Where partial sums nearly cancel, the gradient has three digits."),
    ("linalg.cond", "complex64", "*", "The smallest singular value of a nearly singular matrix has four digits."),
    *(
        (f"special.bessel_{name}", "float64", "*", "The approximation is right to 3e-7, the CPU's to 1e-7.")
        for name in ("j0", "y1")
    ),
    ("matrix_exp", "*float16", "*", "PyTorch's CPU kernel gives NaN; the device's values are those of float32."),
    *(
        (op, "*", kind, "The gradient goes to one of equal elements, and to which is not determined.")
        for op in ("topk", "mode", "kthvalue", "median", "nanmedian")
        for kind in ("backward", "gradgrad")
    ),
    ("masked_fill", "*", "errors", "Whether a complex value in a tensor is real is not known before it is computed."),
    (
        "linalg.norm.subgradients_at_zero",
        "*",
        "backward",
        "A subgradient of the nuclear norm at zero depends on the basis of the null space, which is not determined.",
    ),
    *(
        (op, dtype, "*", "XLA has no complex numbers of half precision (complex32).")
        for op, dtype in (("chalf", "*"), ("complex", "float16"), ("view_as_complex", "float16"))
    ),
    (
        "nn.functional.scaled_dot_product_attention",
        "float32",
        "gradgrad",
        "The gradient of the fused attention has none itself, as on other devices; the CPU takes the composite for "
        "three dimensions. `sdpa_kernel(SDPBackend.MATH)` has all of them.",
    ),
    (
        "nn.functional.scaled_dot_product_attention",
        "float16",
        "backward",
        "The gradient of the fused attention starts from the output rounded to float16, as on other devices; it is off "
        "by one unit in the last place of the largest gradient, which small ones show.",
    ),
    ("to_sparse", "*", "*", "The device has no sparse layouts; they are refused by name."),
    ("sparse.*", "*", "*", "The device has no sparse layouts; they are refused by name."),
]
