"""DataProto: rows of tensors and objects with shared metadata (the contract of verl's class of that name).

`batch` holds tensors with a common leading dimension, dense [N, ...] or jagged [N, j, ...], `non_tensor_batch` numpy
arrays of the same length, `meta_info` anything that belongs to the batch as a whole. What a method returns has its own
`meta_info` (new dicts and lists at every level); consecutive rows share the tensors' memory, any other choice of rows
copies it.
"""

from __future__ import annotations

from rl_core.data_proto.column_methods import ColumnMethods
from rl_core.data_proto.row_methods import RowMethods


class DataProto(RowMethods, ColumnMethods):
    """Rows of tensors and objects, with shared metadata. Compared by identity; subclasses stay what they are."""
