"""XLA's own view of its flags: the message that they are parsed into.

The description of that message is stored in the CUDA plugin, and the message itself is
part of what jaxlib serialises, so that the names, types, defaults and the reading of
`XLA_FLAGS` can be compared with the compiler that is installed.
"""

import functools
import importlib.util
import mmap
import subprocess
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from lagom_jax import processes

_FILE = b"xla/xla.proto"
_SERIALISE = """
import sys
from jaxlib import xla_client
sys.stdout.buffer.write(xla_client.CompileOptions().SerializeAsString())
"""
_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
_FIELD = descriptor_pb2.FieldDescriptorProto


@functools.cache
def message():
    """The class of the message, without what refers to other files."""
    found = next(filter(None, map(importlib.util.find_spec, _PLUGINS)))
    library = Path(found.origin).parent / "xla_cuda_plugin.so"
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        start = data.find(b"\n" + bytes([len(_FILE)]) + _FILE)
        described = descriptor_pb2.FileDescriptorProto()
        for end in _ends(data, start):
            try:
                described.ParseFromString(data[start:end])
            except DecodeError:
                break
    (options,) = (m for m in described.message_type if m.name == "DebugOptions")
    alone = descriptor_pb2.FileDescriptorProto(
        name="flags.proto", package="xla", syntax=described.syntax
    )
    alone.message_type.add().CopyFrom(options)
    own = alone.message_type[0]
    for part in (own, *own.nested_type):
        for field in part.field:
            if field.type_name and not field.type_name.startswith(".xla.DebugOptions."):
                message_field = field.type == _FIELD.TYPE_MESSAGE
                field.type = _FIELD.TYPE_BYTES if message_field else _FIELD.TYPE_INT32
                field.ClearField("type_name")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(alone)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("xla.DebugOptions")
    )


def parsed(flags):
    """What XLA makes of a text of `XLA_FLAGS`; None where it ends the process."""
    done = subprocess.run(
        processes.python("-c", _SERIALISE),
        env=processes.environment(XLA_FLAGS=flags),
        capture_output=True,
        timeout=60,
    )
    if done.returncode:
        return None
    # CompileOptionsProto.executable_build_options.debug_options
    return message().FromString(_part(_part(done.stdout, 3), 3))


def plain(options, name):
    """The value of a field as the catalogue writes values; None if it is unset."""
    field = message().DESCRIPTOR.fields_by_name[name]
    value = getattr(options, name)
    names = field.enum_type and field.enum_type.values_by_number
    if hasattr(value, "items"):
        return dict(value)
    if isinstance(value, (bool, int, float, str, bytes)):
        if field.has_presence and not options.HasField(name):
            return None
        return names[value].name if names else value
    return tuple(names[item].name if names else item for item in value)


def _ends(data, at):
    """Where the fields of a message that begins here end, one after another."""
    first = True
    while True:
        tag, after = _varint(data, at)
        if (
            tag & 7 not in (0, 2)
            or not 1 <= tag >> 3 <= 14
            or (tag == 10 and not first)
        ):
            return
        size, after = _varint(data, after)
        at = after + size if tag & 7 == 2 else after
        first = False
        yield at


def _part(data, number):
    """The last field of a message that has this number and a length."""
    at, found = 0, b""
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 2:
            size, at = _varint(data, at)
            if tag >> 3 == number:
                found = data[at : at + size]
            at += size
        else:
            at = {
                0: lambda a: _varint(data, a)[1],
                1: lambda a: a + 8,
                5: lambda a: a + 4,
            }[tag & 7](at)
    return found


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
