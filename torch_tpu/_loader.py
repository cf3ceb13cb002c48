"""The name by which Ray loads the backend."""


def load() -> None:
    """Register the device; importing the package did."""
    import torch_tpu  # noqa: F401
