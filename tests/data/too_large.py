"""A script whose model does not fit a chip with 16 GB: the second table is too much."""

import torch
from torch import nn


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Embedding(1000, 64)
        self.large = nn.Embedding(2_000_000, 4096)


with torch.device("tpu"):
    model = Tables()
print(sum(p.numel() for p in model.parameters()))
