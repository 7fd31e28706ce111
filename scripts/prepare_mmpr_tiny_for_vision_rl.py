"""Prepare MMPR-Tiny by hand, as `rl-train prep -c vision` does, without registering the result.

`python scripts/prepare_mmpr_tiny_for_vision_rl.py --input-dir RAW --output-dir OUT [key=value …]`
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rl_core.data.stages.by_hand import prepare_by_hand

if __name__ == "__main__":
    sys.exit(prepare_by_hand("vision", __doc__ or ""))
