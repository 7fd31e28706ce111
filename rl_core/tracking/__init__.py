"""MLflow, and the only place that imports it: runs, model versions, lineage, and the picture of a run.

Import the modules where they are used; `mlflow` takes about two seconds to import.
"""

import os

# Reading a recipe of two kilobytes back should not draw a progress bar into the terminal.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
