"""DataProto: the batch type that moves between the parts of a run."""

from rl_core.data_proto.columns import MetaInfo, list_of_dict_to_dict_of_list
from rl_core.data_proto.compat.collation import collate_fn
from rl_core.data_proto.compat.divisors import pad_dataproto_to_divisor, unpad_dataproto
from rl_core.data_proto.compat.folding import fold_batch_dim, unfold_batch_dim
from rl_core.data_proto.compat.futures import DataProtoFuture
from rl_core.data_proto.compat.gathering import all_gather_data_proto
from rl_core.data_proto.compat.serialising import (
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)
from rl_core.data_proto.errors import DataProtoError, DataProtoKeyError
from rl_core.data_proto.merge import union_numpy_dict, union_tensor_dict
from rl_core.data_proto.padding import DataProtoConfig, pad_rows
from rl_core.data_proto.proto import DataProto, DataProtoItem

__all__ = [
    "DataProto",
    "DataProtoConfig",
    "DataProtoError",
    "DataProtoFuture",
    "DataProtoItem",
    "DataProtoKeyError",
    "MetaInfo",
    "all_gather_data_proto",
    "collate_fn",
    "deserialize_single_tensor",
    "deserialize_tensordict",
    "fold_batch_dim",
    "list_of_dict_to_dict_of_list",
    "pad_dataproto_to_divisor",
    "pad_rows",
    "serialize_single_tensor",
    "serialize_tensordict",
    "unfold_batch_dim",
    "union_numpy_dict",
    "union_tensor_dict",
    "unpad_dataproto",
]
