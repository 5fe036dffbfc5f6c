"""The closed table of names in pickles of Petastorm, with harmless functions for those that are called."""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from penstock.formats.petastorm.pickle.machine import Global, Instance, PickleProblem, kind_of, old_bytes, printable

__all__ = ["CODECS", "INDEXERS", "NUMPY", "SPARK", "ClosedNames", "DType"]

OLD_PACKAGES = ("av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit")
"""Names of the package before it was published."""

MODULES = {
    "__builtin__": "builtins",
    "copy_reg": "copyreg",
    "numpy._core.multiarray": "numpy.core.multiarray",
    **{
        f"{package}.{module}": f"petastorm.{module}"
        for package in OLD_PACKAGES
        for module in ("codecs", "unischema", "sequence", "etl.rowgroup_indexers")
    },
}
"""Renamed modules."""

NUMPY = {
    name: getattr(np, name)
    for name in (
        *("bool_", "bytes_", "str_", "object_", "datetime64", "timedelta64", "float16", "float32", "float64"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *("complex64", "complex128"),
    )
}
"""The NumPy types of fields."""

ALIASES = {
    ("builtins", "unicode"): "str",
    ("builtins", "long"): "int",
    **{
        ("numpy", alias): name
        for alias, name in {
            "bool": "bool_",
            "string_": "bytes_",
            "unicode_": "str_",
            "half": "float16",
            "single": "float32",
            "double": "float64",
            "float_": "float64",
            "complex_": "complex128",
            "csingle": "complex64",
            "cdouble": "complex128",
            "intc": "int32",
            "uintc": "uint32",
            "int_": "int64",
            "uint": "uint64",
            "intp": "int64",
            "uintp": "uint64",
            "longlong": "int64",
            "ulonglong": "uint64",
        }.items()
    },
}
"""Other names of types."""

DTYPE_CLASSES = {
    **{f"{name[0].upper()}{name[1:]}DType": name for name in NUMPY if name[-1].isdigit()},
    **{f"UInt{bits}DType": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "BoolDType": "bool_",
    "BytesDType": "bytes_",
    "StrDType": "str_",
    "ObjectDType": "object_",
    "DateTime64DType": "datetime64",
    "TimeDelta64DType": "timedelta64",
}
"""The classes of dtypes in `numpy.dtypes`, and the types of their values."""

CODECS = ("ScalarCodec", "NdarrayCodec", "CompressedNdarrayCodec", "CompressedImageCodec")
INDEXERS = ("SingleFieldIndexer", "FieldNotNullIndexer")
SPARK = (
    *("NullType", "StringType", "CharType", "VarcharType", "BinaryType", "BooleanType", "DateType", "TimestampType"),
    *("TimestampNTZType", "DecimalType", "DoubleType", "FloatType", "ByteType", "ShortType", "IntegerType", "LongType"),
    *("DayTimeIntervalType", "YearMonthIntervalType", "ArrayType", "MapType", "StructType", "StructField"),
)
"""The names of types in `pyspark.sql.types`."""

CLASSES = frozenset(
    {
        *(Global("petastorm.unischema", name) for name in ("Unischema", "UnischemaField")),
        *(Global("petastorm.codecs", name) for name in CODECS),
        *(Global("petastorm.etl.rowgroup_indexers", name) for name in INDEXERS),
        *(Global("pyspark.sql.types", name) for name in SPARK),
    }
)
"""The classes of objects."""

VALUES = frozenset(
    {
        *(Global("builtins", name) for name in ("object", "tuple", "bool", "bytes", "float", "int", "str")),
        *(Global("numpy", name) for name in NUMPY),
    }
)
"""Names that are values only."""

NEVER = frozenset({"numpy", "pyspark", "commands", "exceptions", "urllib2"})
"""Packages, besides the standard library, that contain no classes of users."""

DTYPE = re.compile(r"[<>|=]?([?biufcmMSU])(\d{0,6})")
UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns")
DECIMAL = re.compile(r"[+-]?(?:\d{1,80}(?:\.\d{0,80})?(?:[eE][+-]?\d{1,4})?|NaN|Infinity|Inf)", re.ASCII)
MAX_ITEM_BYTES = 1 << 16
MAX_NAMES = 1000
FIELD_PARTS = 5


@dataclass(slots=True)
class DType:
    """A NumPy dtype in a pickle: a code, and a state with the byte order, the size and the unit."""

    code: str
    state: Any = None
    converted: np.dtype[Any] | None = None

    def numpy(self) -> np.dtype[Any]:
        """Return the dtype.

        Raises:
            PickleProblem: If it is not a dtype of numbers, times, text or bytes.
        """
        if self.converted is None:
            self.converted = self._convert()
        return self.converted

    def _convert(self) -> np.dtype[Any]:
        code = DTYPE.fullmatch(self.code)
        state = self.state if isinstance(self.state, tuple) else ()
        if code is None or (self.state is not None and len(state) < 8):  # noqa: PLR2004 - as NumPy writes it
            raise PickleProblem(f"it has a dtype {self.code[:40]!r} that makes no sense")
        kind, size = code[1], code[2]
        if kind in "SU" and state:
            size = str(_item_size(state[5]) // (4 if kind == "U" else 1))
        unit = f"[{_unit(state)}]" if kind in "mM" and len(state) > 8 else ""  # noqa: PLR2004 - as NumPy writes it
        try:
            dtype: np.dtype[Any] = np.dtype(kind + size + unit)
        except TypeError as error:
            raise PickleProblem(f"it has a dtype {self.code[:40]!r} that NumPy does not know") from error
        if dtype.itemsize > MAX_ITEM_BYTES:
            raise PickleProblem(f"it has a dtype {self.code[:40]!r} of {dtype.itemsize} bytes that is not read")
        return dtype.newbyteorder(">") if state[1:2] == (">",) else dtype


def _item_size(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_ITEM_BYTES:
        raise PickleProblem("it has a dtype whose size makes no sense")
    return value


def _unit(state: tuple[Any, ...]) -> str:
    """Return the unit of times in the state of a dtype."""
    match state[8]:
        case (_, (str(unit), 1, *_)) if unit in UNITS:
            return unit
        case (_, (bytes(unit), 1, *_)) if unit.decode("ascii", "replace") in UNITS:
            return unit.decode()
    raise PickleProblem("it has a dtype of times whose unit makes no sense")


class ClosedNames:
    """The table of names for one pickle.

    Args:
        size: The size of the pickle, which limits the size of the values that calls return.
    """

    def __init__(self, size: int) -> None:
        """Store the limit."""
        self._budget = 2 * size + 1024
        self._cache: dict[tuple[str, str], Global] = {}

    def find(self, module: str, name: str) -> Global:
        """Return the entry of a name; an unknown name may be a class of a user.

        Raises:
            PickleProblem: If it is in the standard library or another package, and no pickle of Petastorm needs it.
        """
        entry = self._cache.get((module, name))
        if entry is None:
            self._cache[module, name] = entry = self._look_up(module, name)
            if len(self._cache) > MAX_NAMES:
                raise PickleProblem(f"it names more than {MAX_NAMES} things")
        return entry

    def _look_up(self, module: str, name: str) -> Global:
        module = MODULES.get(module, module)
        if module == "numpy.dtypes" and name in DTYPE_CLASSES:
            module, name = "numpy", DTYPE_CLASSES[name]
        entry = Global(module, ALIASES.get((module, name), name))
        if entry in CLASSES or entry in VALUES or entry in CALLS:
            return entry
        package = module.partition(".")[0]
        if package in sys.stdlib_module_names or package in NEVER:
            raise PickleProblem(f"it names {printable(entry)}, which no dataset of Petastorm consists of")
        return Global(module, name, known=False)

    def make(self, kind: Any, parts: tuple[Any, ...]) -> Any:
        """Return an object of a class without a state.

        Raises:
            PickleProblem: If it is not a class of objects.
        """
        if type(kind) is Global and (kind in CLASSES or not kind.known):
            return Instance(kind, parts)
        raise PickleProblem(f"it makes an object of {kind_of(kind)}, which is no class of Petastorm")

    def call(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """Return the result of a function of the table.

        Raises:
            PickleProblem: If it is not in the table, or its arguments are invalid.
        """
        known = CALLS.get(function) if type(function) is Global else None
        if known is None:
            raise PickleProblem(f"it calls {kind_of(function)}, and nothing that a pickle names is ever called")
        try:
            return known(self, *arguments)
        except (TypeError, ValueError, ArithmeticError) as error:
            if isinstance(error, PickleProblem):
                raise
            raise PickleProblem(f"it calls {function} with what makes no sense") from error

    def build(self, instance: Any, state: Any) -> None:
        """Set the state of an object.

        Raises:
            PickleProblem: If it cannot have a state.
        """
        if type(instance) not in (Instance, DType):
            raise PickleProblem(f"it gives {kind_of(instance)} a state, which has none")
        instance.state = state
        if isinstance(instance, DType):
            instance.converted = None

    def _charge(self, size: int) -> None:
        """Count the size of a new value; its arguments may be used many times, though they are written once."""
        self._budget -= size
        if self._budget < 0:
            raise PickleProblem("it makes more of what it holds than it holds: a pickle of Petastorm uses a value once")

    def _reconstructor(self, kind: Any, base: Any, parts: Any) -> Any:
        if base == Global("builtins", "object") and parts is None:
            return self.make(kind, ())
        if base == Global("builtins", "tuple") and type(parts) is tuple:
            return self.make(kind, parts)
        raise PickleProblem(f"it makes an object of {kind_of(kind)} by way of {kind_of(base)}")

    def _new(self, kind: Any, *parts: Any) -> Any:
        return self.make(kind, parts)

    def _restore(self, name: Any, names: Any, values: Any) -> Any:
        """Return the named tuple of a UnischemaField that Spark has pickled."""
        if name != "UnischemaField" or type(names) is not tuple or type(values) is not tuple or len(names) != len(values):
            raise PickleProblem("it restores a named tuple that is no UnischemaField")
        if len(names) > FIELD_PARTS or not all(type(part) is str for part in names):
            raise PickleProblem("it restores a UnischemaField whose parts make no sense")
        by_name = dict(zip(names, values, strict=True))
        parts = [by_name.get(part) for part in ("name", "numpy_dtype", "shape", "codec", "nullable")]
        return Instance(Global("petastorm.unischema", "UnischemaField"), tuple(parts))

    def _ordered_dict(self, pairs: Any = ()) -> OrderedDict[str, Any]:
        if type(pairs) not in (list, tuple):
            raise PickleProblem(f"it makes an OrderedDict of {kind_of(pairs)}")
        self._charge(len(pairs))
        result: OrderedDict[str, Any] = OrderedDict()
        for pair in pairs:
            if type(pair) not in (list, tuple) or len(pair) != 2 or type(pair[0]) is not str:  # noqa: PLR2004 - a pair
                raise PickleProblem("it makes an OrderedDict of what are no pairs of a name and a value")
            result[pair[0]] = pair[1]
        return result

    def _defaultdict(self, factory: Any = None) -> dict[Any, Any]:
        if factory not in (None, Global("builtins", "set")):
            raise PickleProblem(f"it makes a defaultdict of {kind_of(factory)}")
        return {}

    def _set(self, items: Any = ()) -> set[int]:
        if type(items) not in (list, tuple):
            raise PickleProblem(f"it makes a set of {kind_of(items)}")
        self._charge(len(items))
        if not all(type(item) is int or isinstance(item, np.integer) for item in items):
            raise PickleProblem("it makes a set of what are no numbers of row groups")
        return set(items)

    def _bytes(self) -> bytes:
        return b""

    def _encode(self, text: Any, encoding: Any = "latin1") -> bytes:
        """Return bytes, which old protocols write as text."""
        if type(text) is not str or encoding not in ("latin1", "latin-1"):
            raise PickleProblem(f"it encodes {kind_of(text)}")
        self._charge(len(text))
        return text.encode("latin-1")

    def _decimal(self, text: Any) -> Decimal:
        if type(text) is not str or not DECIMAL.fullmatch(text):
            raise PickleProblem(f"it makes a Decimal of {kind_of(text)} that is no number")
        return Decimal(text)

    def _dtype(self, code: Any, *_: Any) -> DType:
        if type(code) is not str:
            raise PickleProblem(f"it makes a dtype of {kind_of(code)}")
        return DType(code)

    def _scalar(self, dtype: Any, raw: Any) -> Any:
        """Return a NumPy scalar."""
        if type(dtype) is not DType or type(raw) not in (bytes, str):
            raise PickleProblem(f"it makes a value of NumPy of {kind_of(dtype)} and {kind_of(raw)}")
        kind, data = dtype.numpy(), raw if isinstance(raw, bytes) else old_bytes(raw)
        self._charge(len(data))
        if len(data) != kind.itemsize:
            raise PickleProblem(f"it makes a {kind} of {len(data)} bytes")
        return np.frombuffer(data, kind)[0] if data else kind.type()


CALLS: dict[Any, Any] = {
    Global("copyreg", "_reconstructor"): ClosedNames._reconstructor,  # noqa: SLF001 - of this module, like the following
    Global("copyreg", "__newobj__"): ClosedNames._new,  # noqa: SLF001
    Global("pyspark.serializers", "_restore"): ClosedNames._restore,  # noqa: SLF001
    Global("collections", "OrderedDict"): ClosedNames._ordered_dict,  # noqa: SLF001
    Global("collections", "defaultdict"): ClosedNames._defaultdict,  # noqa: SLF001
    Global("builtins", "set"): ClosedNames._set,  # noqa: SLF001
    Global("builtins", "bytes"): ClosedNames._bytes,  # noqa: SLF001
    Global("_codecs", "encode"): ClosedNames._encode,  # noqa: SLF001
    Global("decimal", "Decimal"): ClosedNames._decimal,  # noqa: SLF001
    Global("numpy", "dtype"): ClosedNames._dtype,  # noqa: SLF001
    Global("numpy.core.multiarray", "scalar"): ClosedNames._scalar,  # noqa: SLF001
}
"""The functions in place of those that a pickle calls."""
