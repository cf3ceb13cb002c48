"""The real-chip check on a part of the operator database: what docs/chip.md says compiles for a TPU still does."""

from __future__ import annotations

from collections.abc import Iterator

import chip
import chip_table
import pytest
import run

# A few of each kind of lowering: pointwise, products, convolutions, reductions, indexing, sorting, random numbers,
# results of unknown size, linear algebra, transforms, losses, 64-bit integers, and what does not compile.
OPS = (
    "add", "div.floor_rounding", "pow", "erfinv", "special.i0e", "lgamma", "where", "nn.functional.gelu",
    "mm", "einsum", "nn.functional.linear", "nn.functional.conv2d", "nn.functional.conv_transpose2d",
    "nn.functional.scaled_dot_product_attention", "nn.functional.layer_norm", "nn.functional.batch_norm",
    "nn.functional.max_pool2d", "nn.functional.interpolate.bilinear", "nn.functional.grid_sample",
    "sum", "std", "cumsum", "logsumexp", "amax", "median", "softmax",
    "gather", "scatter_add", "index_put", "index_select", "take_along_dim", "nonzero", "masked_select", "unique",
    "topk", "bernoulli", "nn.functional.dropout", "nn.functional.embedding", "nn.functional.ctc_loss",
    "linalg.cholesky", "linalg.svd", "linalg.qr", "linalg.inv", "linalg.eigh", "linalg.lstsq", "linalg.det",
    "fft.fft", "fft.irfft", "stft", "nn.functional.cross_entropy", "gcd", "bitwise_and", "to_sparse",
)  # fmt: skip


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[run.Worker]:
    pytest.importorskip("libtpu", reason="the TPU compiler is not installed: pip install libtpu")
    results = tmp_path_factory.mktemp("chip") / "chip.jsonl"
    made = run.Worker(chip.worker(chip.TARGET, samples=1, results=results), chip.LIMIT)
    yield made
    made.close()


@pytest.fixture(scope="module")
def page() -> dict[chip_table.Key, bool]:
    return chip_table.read(chip_table.PAGE.read_text())


@pytest.mark.parametrize("op", OPS)
def test_what_the_page_does_not_list_compiles(op: str, worker: run.Worker, page: dict[chip_table.Key, bool]) -> None:
    cases = list(chip.cases([op], []))
    assert cases
    for case in cases:
        if case["dtype"] == "bfloat16" and case["kind"] == "backward":
            continue  # to keep it short
        verdict = worker.judge(case)
        assert verdict["verdict"] == ("pass" if chip_table.passes(page, case) else "fail"), verdict
