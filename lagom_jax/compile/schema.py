"""The part of the compiler's protocol buffers that is read here.

There is no maintained Python package with these message classes, and generated
code is bound to a narrow range of protobuf versions, so the messages are declared
as data: name, then `number type field`, `*` marking a repeated field. Fields that
are not declared are skipped by protobuf. The declarations live in a descriptor pool
of their own and so cannot clash with another library's copy in the same process.

Enums are declared as int32, which reads the same bytes; maps as repeated entries.
Field numbers: openxla/xla `xla/service/hlo.proto`, `xla/xla_data.proto` and
`xla/service/gpu/backend_configs.proto`, read from the descriptors inside jaxlib's
CUDA plugins 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

STREAM_ATTRIBUTE: Final = "_xla_stream_annotation"
"""Stream of XLA's for communication that a launch names; without it, XLA chooses."""

_MESSAGES = {
    "HloProto": "1 HloModuleProto hlo_module",
    "HloModuleProto": """
        1 string name
        3 HloComputationProto* computations
        6 int64 entry_computation_id
        7 HloScheduleProto schedule
        8 HloInputOutputAliasProto input_output_alias
        15 DeviceAssignmentProto device_assignment
        17 StackFrameIndexProto stack_frame_index
        19 FrontendAttributes frontend_attributes""",
    "HloModuleNameProto": "1 string name",
    "HloModuleFramesProto": """
        17 StackFrameIndexProto stack_frame_index
        19 FrontendAttributes frontend_attributes""",
    "HloComputationProto": """
        1 string name
        2 HloInstructionProto* instructions
        5 int64 id
        6 int64 root_id""",
    "HloInstructionProto": """
        1 string name
        2 string opcode
        3 ShapeProto shape
        7 OpMetadata metadata
        9 int64 parameter_number
        13 int64 tuple_index
        14 int64* dimensions
        15 Window window
        16 ConvolutionDimensionNumbers convolution_dimension_numbers
        17 SliceDimensions* slice_dimensions
        26 int64 channel_id
        28 string custom_call_target
        30 DotDimensionNumbers dot_dimension_numbers
        32 int64* fft_length
        35 int64 id
        36 int64* operand_ids
        37 int64* control_predecessor_ids
        38 int64* called_computation_ids
        43 bytes backend_config
        49 ReplicaGroup* replica_groups
        52 SourceTarget* source_target_pairs
        58 int64 batch_group_count
        65 bool custom_call_has_side_effect
        68 FrontendAttributes frontend_attributes
        71 bool use_global_device_ids
        74 OutputOperandAliasing* output_operand_aliasing
        87 CollectiveDeviceListProto collective_device_list
        90 RaggedDotDimensionNumbers ragged_dot_dimension_numbers
        92 IotaReplicaGroupListProto iota_collective_device_list
        93 MeshAxesReplicaGroupListProto mesh_axes_replica_group_list
        99 Payload backend_config_payload""",
    "HloInputOutputAliasProto": "1 InputOutputAlias* entries",
    "InputOutputAlias": """
        1 int64* output_shape_index
        2 int64 parameter_number
        3 int64* parameter_shape_index""",
    "OutputOperandAliasing": """
        1 int64* output_shape_index
        2 int64 operand_index
        3 int64* operand_shape_index""",
    "SliceDimensions": "1 int64 start\n2 int64 limit\n3 int64 stride",
    "HloScheduleProto": "1 ScheduleEntry* sequences",
    "ScheduleEntry": "1 int64 key\n2 InstructionSequence value",
    "InstructionSequence": "1 int64* instruction_ids",
    "DeviceAssignmentProto": """
        1 int32 replica_count
        2 int32 computation_count
        3 ComputationDevice* computation_devices""",
    "ComputationDevice": "1 int64* replica_device_ids",
    "StackFrameIndexProto": """
        1 string* file_names
        2 string* function_names
        3 FileLocation* file_locations
        4 StackFrame* stack_frames""",
    "FileLocation": "1 int32 file_name_id\n2 int32 function_name_id\n3 int32 line",
    "StackFrame": "1 int32 file_location_id\n2 int32 parent_frame_id",
    "ShapeProto": """
        2 int32 element_type
        3 int64* dimensions
        4 ShapeProto* tuple_shapes
        5 LayoutProto layout""",
    "LayoutProto": "1 int64* minor_to_major\n8 int64 memory_space",
    "OpMetadata": """
        2 string op_name
        3 string source_file
        4 int32 source_line
        15 int32 stack_frame_id""",
    "Window": "1 WindowDimension* dimensions",
    "WindowDimension": """
        1 int64 size
        2 int64 stride
        3 int64 padding_low
        5 int64 window_dilation
        6 int64 base_dilation""",
    "ConvolutionDimensionNumbers": """
        7 int64 input_batch_dimension
        11 int64* input_spatial_dimensions
        4 int64 kernel_output_feature_dimension
        6 int64* kernel_spatial_dimensions
        12 int64* output_spatial_dimensions""",
    "DotDimensionNumbers": """
        1 int64* lhs_contracting_dimensions
        2 int64* rhs_contracting_dimensions
        3 int64* lhs_batch_dimensions
        4 int64* rhs_batch_dimensions""",
    "RaggedDotDimensionNumbers": """
        1 DotDimensionNumbers dot_dimension_numbers
        2 int64* lhs_ragged_dimensions
        3 int64* rhs_group_dimensions""",
    "FrontendAttributes": "1 AttributeEntry* map",
    "AttributeEntry": "1 string key\n2 string value",
    "Payload": "1 bytes value",
    "ReplicaGroup": "1 int64* replica_ids",
    "SourceTarget": "1 int64 source\n2 int64 target",
    "CollectiveDeviceListProto": "1 ReplicaGroup* replica_groups",
    "IotaReplicaGroupListProto": """
        1 int64 num_replica_groups
        2 int64 num_devices_per_group
        3 int64* iota_reshape_dims
        4 int32* iota_transpose_perm""",
    "MeshAxesReplicaGroupListProto": "1 MeshProto mesh\n2 AxisRefProto* axes",
    "MeshProto": """
        1 MeshAxis* axes
        2 int64* device_ids
        3 IotaTransform iota_transform""",
    "MeshAxis": "1 string name\n2 int64 size",
    "IotaTransform": "1 int64* reshape_dims\n2 int64* transpose_perm",
    "AxisRefProto": "1 int64 mesh_axis_index\n2 SubAxis sub_axis_info",
    "SubAxis": "1 int64 pre_size\n2 int64 size",
    "GpuBackendConfig": """
        4 GemmBackendConfig gemm_backend_config
        6 CollectiveBackendConfig collective_backend_config
        7 FusionBackendConfig fusion_backend_config
        8 CudnnNormBackendConfig cudnn_norm_backend_config
        9 CudnnFmhaBackendConfig cudnn_fmha_backend_config
        17 GroupedGemmBackendConfig grouped_gemm_backend_config""",
    "GemmBackendConfig": "7 DotDimensionNumbers dot_dimension_numbers",
    "GroupedGemmBackendConfig": """
        1 GemmBackendConfig gemm_backend_config
        2 RaggedDotDimensionNumbers ragged_dot_dimension_numbers""",
    "CollectiveBackendConfig": """
        1 bool is_sync
        3 bool is_pipelined
        7 int32 kernel_strategy""",
    "FusionBackendConfig": "1 string kind",
    "CudnnFmhaBackendConfig": """
        11 DotDimensionNumbers bmm1_dot_dimension_numbers
        14 ShapeProto intermediate_tensor_shape
        21 bool is_causal_mask
        22 int32 mask_type
        24 int32 sliding_window_length""",
    "CudnnNormBackendConfig": "3 int32 kind",
    "WhileLoopBackendConfig": "1 KnownTripCount known_trip_count",
    "KnownTripCount": "1 int64 n",
}

_SCALARS = {
    "int64": 3,
    "int32": 5,
    "bool": 8,
    "string": 9,
    "bytes": 12,
}
_MESSAGE_TYPE = 11
_OPTIONAL, _REPEATED = 1, 3
_PACKAGE = "lagom_jax.hlo"


@functools.cache
def _classes() -> dict[str, Any]:
    return message_classes("lagom_jax/hlo.proto", _PACKAGE, _MESSAGES)


def message_classes(
    file_name: str, package: str, messages: Mapping[str, str]
) -> dict[str, Any]:
    r"""Protobuf classes of messages that are declared as data, as above.

    Args:
        file_name: Of the file that would declare them.
        package: Of the messages.
        messages: Their fields by name, a line each.

    Example:
        >>> found = message_classes("a.proto", "a", {"A": "1 string name"})
        >>> found["A"](name="b").SerializeToString()
        b'\n\x01b'
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file: Any = descriptor_pb2.FileDescriptorProto(
        name=file_name, package=package, syntax="proto3"
    )
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for line in fields.strip().splitlines():
            number, kind, name = line.split()
            repeated, kind = kind.endswith("*"), kind.rstrip("*")
            field = message.field.add(
                name=name,
                number=int(number),
                label=_REPEATED if repeated else _OPTIONAL,
                type=_SCALARS.get(kind, _MESSAGE_TYPE),
            )
            if kind not in _SCALARS:
                field.type_name = f".{package}.{kind}"
    pool: Any = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{package}.{name}")
        )
        for name in messages
    }


def message_class(name: str) -> Any:
    """The protobuf class of one of the compiler's messages.

    Example:
        >>> shape = message_class("ShapeProto")(element_type=11, dimensions=[4, 8])
        >>> message_class("ShapeProto").FromString(shape.SerializeToString()).dimensions
        [4, 8]
    """
    return _classes()[name]
