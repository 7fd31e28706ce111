"""MLflow tracking, in the only package that imports mlflow: runs, model versions, lineage, and the
plot of a run.

Import its modules lazily; `mlflow` takes about two seconds to import.
"""

import os

# Reading a recipe of two kilobytes back should not draw a progress bar into the terminal.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
