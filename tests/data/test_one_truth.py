"""Whatever is wrong with a row, `rl-train validate`, `--dry-run`, preparation and the row's
environment say the same about it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rl_core.data.check import first_rows
from rl_core.data.check.files import check_files
from rl_core.data.read.recipe_files import check_settings, preparation_settings
from schemas.rows.contract import SchemaName
