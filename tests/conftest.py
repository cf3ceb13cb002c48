"""Shared set-up of the tests."""

import sys
from pathlib import Path

from torch_tpu.lowering import load_rules

sys.path.insert(0, str(Path(__file__).parent / "lowering"))
load_rules()
