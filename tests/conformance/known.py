"""Cases that are known to fail, and why. `table.py` lists them; a failure that isn't here fails the tests."""

# (operator, dtype, kind of check, reason), with wildcards.
KNOWN: list[tuple[str, str, str, str]] = [
    ("to_sparse", "*", "*", "The device has no sparse layouts; they are refused by name."),
    ("sparse.*", "*", "*", "The device has no sparse layouts; they are refused by name."),
]
