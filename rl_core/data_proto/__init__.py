"""DataProto: the one batch type that moves between parts."""

from rl_core.data_proto.columns import list_of_dict_to_dict_of_list
from rl_core.data_proto.convert import collate_fn
from rl_core.data_proto.errors import DataProtoError, DataProtoKeyError
from rl_core.data_proto.fold import fold_batch_dim, unfold_batch_dim
from rl_core.data_proto.future import DataProtoFuture
from rl_core.data_proto.gather import all_gather_data_proto
from rl_core.data_proto.item import DataProtoItem
from rl_core.data_proto.merge import union_numpy_dict, union_tensor_dict
from rl_core.data_proto.padding import DataProtoConfig, pad_dataproto_to_divisor, pad_rows, unpad_dataproto
from rl_core.data_proto.proto import DataProto
from rl_core.data_proto.serialize import (
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)

__all__ = [
    "DataProto",
    "DataProtoConfig",
    "DataProtoError",
    "DataProtoFuture",
    "DataProtoItem",
    "DataProtoKeyError",
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
