"""A script that raises, after a loop over lengths."""

import sys

import torch

for length in range(2, 8):
    x = torch.ones(length, 3, device="tpu")
    y = torch.cosh(x)
raise ValueError(f"no {sys.argv[1]}")
