"""Reading pickles as data: all protocols, and errors for pickles that could run code or never end."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import pickle
import shutil
from collections import OrderedDict, defaultdict
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import petastorm_pickles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.petastorm.index import NotNullIndex, ValueIndex, load_indexes, load_row_groups
from penstock.formats.petastorm.pickle import io as _pickles
from penstock.formats.petastorm.pickle.io import Global, Instance, PickleProblem, interpret, to_pickle
from penstock.formats.petastorm.schema import (
    SparkType,
    StoredCodec,
    StoredField,
    StoredSchema,
    load_unischema,
    pickle_unischema,
)

PROTOCOLS = range(6)
SINGLE = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.binary(max_size=20)
)
VALUES = st.recursive(
    SINGLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4)
        | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4).map(OrderedDict)
        | st.sets(st.integers(0, 99), max_size=5)
    ),
    max_leaves=20,
)
OLD_SCHEMA = b"""ccopy_reg
_reconstructor
p1
(c%(package)s.unischema
Unischema
p2
c__builtin__
object
p3
NtRp4
(dp5
S'_name'
S'Old \\xc3\\xa9'
sS'_fields'
ccollections
OrderedDict
((lp6
(lp7
S'it\\'s'
acpyspark.serializers
_restore
(S'UnischemaField'
(S'name'
S'numpy_dtype'
S'shape'
S'codec'
S'nullable'
t(S'it\\'s'
cnumpy
string_
(L3L
Ntg1
(c%(package)s.codecs
NdarrayCodec
g3
NtRI01
ttRaatRsb."""


def stored(pickles: dict[int, str], protocol: int) -> bytes:
    """Return a pickle that Petastorm made."""
    return base64.b64decode(pickles[protocol])


def old_schema(package: bytes) -> bytes:
    """Return a schema of one field as Python 2 and Spark pickled it, in the text of protocol 0."""
    return OLD_SCHEMA.replace(b"%(package)s", package)


@given(value=VALUES, protocol=st.sampled_from(PROTOCOLS))
def test_plain_values_are_what_pickle_makes_of_them(value: object, protocol: int) -> None:
    """The interpreter gives back plain values with their types, for every protocol."""
    found = interpret(pickle.dumps(value, protocol))

    assert found == value
    assert type(found) is type(value)


@given(value=VALUES)
def test_a_pickle_that_ends_early_is_refused(value: object) -> None:
    """A truncated pickle raises PickleProblem, wherever it was cut."""
    data = pickle.dumps(value)

    for end in range(0, len(data), max(1, len(data) // 10)):
        with pytest.raises(PickleProblem):
            interpret(data[:end])


@given(data=st.binary(max_size=200))
def test_any_bytes_give_values_or_a_pickle_problem(data: bytes) -> None:
    """Arbitrary bytes give a value or raise PickleProblem, and no other error."""
    with contextlib.suppress(PickleProblem):
        interpret(data)


@given(data=st.data(), protocol=st.sampled_from(PROTOCOLS))
def test_a_schema_with_a_changed_byte_gives_a_schema_or_a_pickle_problem(data: st.DataObject, protocol: int) -> None:
    """A schema with one changed byte gives a schema or raises PickleProblem, and no other error."""
    whole = bytearray(stored(petastorm_pickles.EVERYTHING, protocol))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))

    try:
        found = load_unischema(bytes(whole))
    except PickleProblem:
        return
    assert isinstance(found, StoredSchema)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "value",
    [
        *(np.dtype(code).type(7) for code in ("i1", "u1", "i2", "u4", "i8", "u8", "f2", "f4", "f8", "?")),
        np.str_("grün"),
        np.bytes_(b"a\xff"),
        np.datetime64("2024-05-06", "D"),
        np.datetime64("2024-05-06T01:02:03.456789", "us"),
        np.timedelta64(5, "ms"),
        Decimal("1.50"),
        Decimal("-1E+5"),
        "text",
        b"bytes",
        b"",
        2**62,
        1.5,
        True,
    ],
    ids=repr,
)
def test_keys_of_indexes_are_values_of_python_and_numpy(value: Any, protocol: int) -> None:
    """Keys of an index come back with the same value and type."""
    data: dict[Any, set[int]] = defaultdict(set)
    data[value] = {1, 2}

    ((found, groups),) = interpret(pickle.dumps(data, protocol)).items()
    assert (found, type(found), groups) == (value, type(value), {1, 2})


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (np.bool_, "bool_"),
        (np.str_, "str_"),
        (np.bytes_, "bytes_"),
        (np.longlong, "int64"),
        (np.dtypes.UInt8DType, "uint8"),
        (np.dtypes.StrDType, "str_"),
        (np.dtypes.DateTime64DType, "datetime64"),
    ],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_types_of_current_numpy_have_one_name(value: type, name: str, protocol: int) -> None:
    """Each type of NumPy has one name, whatever NumPy called it in other versions."""
    assert interpret(pickle.dumps(value, protocol)) == Global("numpy", name)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"(S'a'\nI1\nd.", {"a": 1}),
        (b"(K\x01K\x02\x91.", frozenset({1, 2})),
        (b"N(0.", None),
        (b"N(NN1.", None),
        (b"(N(0NNl.", [None, None, None]),
        (b"N2\x86.", (None, None)),
        (b"L5L\n.", 5),
        (b"\x8a\x00.", 0),
        (b"\x8a\x09" + (2**64).to_bytes(9, "little") + b".", 2**64),
        (b"F1.5\n.", 1.5),
        (b"Vgr\\u00fcn\n.", "grün"),
        (b'S"it\'s \\x41\\t\\\\"\n.', "it's A\t\\"),
        (b"(K\x07ipetastorm.codecs\nNdarrayCodec\n.", Instance(Global("petastorm.codecs", "NdarrayCodec"), (7,))),
        (b"(cpetastorm.codecs\nNdarrayCodec\nK\x07o.", Instance(Global("petastorm.codecs", "NdarrayCodec"), (7,))),
        (b"cpetastorm.codecs\nNdarrayCodec\n(K\x07t}\x92.", Instance(Global("petastorm.codecs", "NdarrayCodec"), (7,))),
        (b"ccopyreg\n__newobj__\n(cour.codecs\nMine\nK\x07tR.", Instance(Global("our.codecs", "Mine", known=False), (7,))),
    ],
)
def test_opcodes_that_current_pickle_does_not_write_are_read(data: bytes, expected: object) -> None:
    """Opcodes of old picklers and of other implementations give the same values."""
    assert interpret(data) == expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_schemas_of_every_protocol_are_the_same(protocol: int) -> None:
    """A Unischema of Petastorm 0.13.1 has the same fields in every protocol."""
    found = load_unischema(stored(petastorm_pickles.EVERYTHING, protocol))

    fields = {field.name: field for field in found.fields}
    assert found.name == "Everything"
    assert list(fields)[:4] == ["id", "small", "flag", "half"]
    assert fields["price"].numpy_dtype is Decimal
    assert fields["price"].codec == StoredCodec(
        "petastorm.codecs.ScalarCodec",
        {"spark_type": SparkType("DecimalType", {"precision": 10, "scale": 2, "hasPrecisionInfo": True})},
    )
    assert fields["bare"] == StoredField("bare", np.float64, (), None, nullable=True)
    assert fields["whole"].numpy_dtype is int
    assert fields["ragged"].numpy_dtype == np.dtype("uint16")
    assert fields["ragged"].shape == (None, 4)
    assert fields["moments"].numpy_dtype is np.datetime64
    assert fields["photo"].codec == StoredCodec(
        "petastorm.codecs.CompressedImageCodec", {"image_codec": ".jpeg", "quality": 95}
    )


@pytest.mark.parametrize(
    "package", [b"petastorm", b"av.ml.dataset_toolkit", b"av.experimental.deepdrive.dataset_toolkit"], ids=bytes.decode
)
def test_schemas_of_python_2_are_read_under_every_name_of_the_package(package: bytes) -> None:
    """Schemas of Python 2 are read: text of protocol 0, fields that Spark restores, and former module names."""
    found = load_unischema(old_schema(package))

    codec = StoredCodec("petastorm.codecs.NdarrayCodec", {})
    assert found == StoredSchema("Old é", (StoredField("it's", np.bytes_, (3, None), codec, nullable=True),))


@pytest.mark.parametrize("protocol", petastorm_pickles.OWN_CODEC)
def test_an_unknown_codec_is_read_as_its_name_and_attributes(protocol: int) -> None:
    """The class of an unknown codec is not imported; only its name and attributes are read."""
    found = load_unischema(stored(petastorm_pickles.OWN_CODEC, protocol))

    assert found.fields[1].codec == StoredCodec("our_project.codecs.Squash", {"factor": 3, "kinds": ["numpy.float32", "x"]})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_indexes_of_every_protocol_are_the_same(protocol: int) -> None:
    """Indexes have the same values and row groups in every protocol."""
    found = load_indexes(stored(petastorm_pickles.INDEXES, protocol))

    assert found == {
        "by_label": ValueIndex(name="by_label", column="label", row_groups={1: frozenset({0}), 2: frozenset({0, 1})}),
        "by_word": ValueIndex(name="by_word", column="words", row_groups={"a": frozenset({0, 1}), "ü": frozenset({0})}),
        "by_day": ValueIndex(name="by_day", column="day", row_groups={np.datetime64("2024-01-02"): frozenset({1})}),
        "by_price": ValueIndex(name="by_price", column="price", row_groups={Decimal("1.50"): frozenset({0})}),
        "has_weight": NotNullIndex(name="has_weight", column="weight", row_groups=frozenset({1})),
    }


class Trap:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *given: Any) -> None:
        """Store the function and its arguments."""
        self.call = function, given

    def __reduce__(self) -> Any:
        """Return the function and its arguments, for `pickle` to write."""
        return self.call


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("trap", "message"),
    [
        (Trap(eval, "6 * 7"), "builtins.eval"),
        (Trap(exec, "import os"), "builtins.exec"),
        (Trap(__import__, "os"), "builtins.__import__"),
        (Trap(getattr, "text", "upper"), "builtins.getattr"),
        (Trap(getattr, Trap(__import__, "os"), "system"), "builtins."),
        (Trap(shutil.rmtree, "nothing"), "shutil.rmtree"),
        (Trap(np.load, "file"), "numpy"),
        (Trap(json.loads, "1"), "json.loads"),
        (Trap(dt.date, 2024, 1, 1), "datetime.date"),
        (Trap(Fraction, 1, 2), "fractions.Fraction"),
        (np.zeros(3), "numpy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_pickle_that_would_run_code_is_refused_by_name(trap: Any, message: str, protocol: int) -> None:
    """A pickle that would call a function outside the table of names raises PickleProblem, which names it."""
    with pytest.raises(PickleProblem) as caught:
        load_unischema(pickle.dumps({"a": trap}, protocol))

    assert f"it names {message}" in str(caught.value)
    assert "which no dataset of Petastorm consists of" in str(caught.value)


OBJECT = b"cpetastorm.codecs\nNdarrayCodec\nq\x01"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"cos\nsystem\n(S'id'\ntR.", "at byte 0 it names os.system"),
        (b"c__builtin__\neval\n(S'1'\ntR.", "at byte 0 it names builtins.eval"),
        (b"(S'id'\nios\nsystem\n.", "it names os.system"),
        (
            b"cevil.module\nrun\n(S'id'\ntR.",
            "it calls the name evil.module.run, and nothing that a pickle names is ever called",
        ),
        (b"ccopyreg\n_reconstructor\n(cposix\nsystem\nc__builtin__\nobject\nNtR.", "it names posix.system"),
        (b"cbuiltins\ntuple\n)R.", "it calls the name builtins.tuple"),
        (b"cbuiltins\nobject\n)\x81.", "it makes an object of the name builtins.object, which is no class of Petastorm"),
        (b"cpetastorm.codecs\nNdarrayCodec\n)R.", "it calls the name petastorm.codecs.NdarrayCodec"),
        (OBJECT + b")}S'a'\nNs\x92.", "it makes something of parts with names"),
        (b"\x82\x01.", "it refers to a registry of the program (EXT1), and no dataset of Petastorm does so"),
        (b"\x83\x01\x00.", "(EXT2)"),
        (b"\x84\x01\x00\x00\x00.", "(EXT4)"),
        (b"Pid\n.", "it refers to an object outside of it (PERSID)"),
        (b"NQ.", "(BINPERSID)"),
        (b"\x97.", "(NEXT_BUFFER)"),
        (b"\x98.", "(READONLY_BUFFER)"),
        (b"\x96" + bytes(8) + b".", "(BYTEARRAY8)"),
        (b"\xff.", r"there is b'\xff', which is no opcode of a pickle"),
        (b"\x80\x06N.", "it is of protocol 6, and those up to 5 are known"),
        (b"X\x00\x00\x00\x40abc.", "1073741824 bytes are said to follow, and there are 4"),
        (b"T\x00\x00\x00\x40abc.", "1073741824 bytes are said to follow"),
        (b"\x8d" + (1 << 50).to_bytes(8, "little") + b".", "1125899906842624 bytes are said to follow, and there are 1"),
        (b"\x8e" + (1 << 50).to_bytes(8, "little") + b".", "1125899906842624 bytes are said to follow"),
        (b"\x95" + (1 << 50).to_bytes(8, "little") + b"N.", "1125899906842624 bytes are said to follow"),
        (b"\x8b\xff\xff\xff\x7f.", "a whole number has 2147483647 bytes, and 9 are read at most"),
        (b"L" + b"9" * 5000 + b"L\n.", "a whole number of at most 20 digits was expected"),
        (b"I1_0\n.", "a whole number of at most 20 digits was expected, and there is b'1_0'"),
        (b"p" + b"9" * 5000 + b"\n.", "a whole number of at most 20 digits was expected"),
        (b"h\x05.", "it refers to value 5 of its memo, which has none of that number"),
        (b"Sabc\n.", "a text has no quotes around it"),
        (b"S'a\\q'\n.", "a text has a backslash that stands for nothing"),
        (b"S'abc", "a line does not end where it should"),
        (b"Fabc\n.", "something makes no sense: ValueError"),
        (b"X\x01\x00\x00\x00\xff.", "something makes no sense: UnicodeDecodeError"),
        (b"", "it ends, and its opcode STOP was expected"),
        (b"N", "at byte 1 it ends, and its opcode STOP was expected: it was cut short"),
        (b".", "it takes a value from its stack, and there is none"),
        (b"N(.", "it takes a value from its stack, and there is none"),
        (b"N\x86.", "it takes values from its stack, and there are fewer"),
        (b"t.", "it refers to a mark, and there is none"),
        (b"2.", "it refers to the last value on its stack, and there is none"),
        (b"NNa.", "it puts values into nothing, and a list was expected"),
        (b"NNNs.", "it puts values into nothing, and a dict was expected"),
        (b"}(Nu.", "a key has no value"),
        (b"NNR.", "it makes something of nothing, and a tuple was expected"),
        (b"NNb.", "it gives nothing a state, which has none"),
        (b"}}b.", "it gives a dict a state, which has none"),
        (b"NN\x93.", "nothing stands where a name does"),
        (b"}]Ns.", "a list stands where a key or an item of a set does"),
        (b"})" + b"2\x86" * 500 + b"Ns.", "a tuple stands where a key or an item of a set does"),
        (b"\x8f()\x90.", "a tuple stands where a key or an item of a set does"),
        (b"(" * 5000, "values lie more than 1000 deep in each other"),
        (b"]" * 100_000, "more than 65536 values lie on its stack"),
        (b"N" + b"0N" * 300_000 + b".", "it has more than 500000 opcodes, which is the most that is read"),
        (b"".join(b"ca\nb%d\n0" % n for n in range(2000)) + b"N.", "it names more than 1000 things"),
        (
            b"c_codecs\nencode\nq\x00X\x10\x27\x00\x00" + b"a" * 10_000 + b"q\x01" + b"h\x00h\x01\x85R" * 1000 + b".",
            "it makes more of what it holds than it holds",
        ),
        (
            b"ccollections\nOrderedDict\nq\x00](" + b"X\x01\x00\x00\x00aN\x86" * 1000 + b"eq\x01" + b"h\x00h\x01\x85R" * 1000,
            "it makes more of what it holds than it holds",
        ),
        (b"c_codecs\nencode\n(S'a'\nS'rot13'\ntR.", "it encodes a str"),
        (b"cdecimal\nDecimal\n(S'1E999999999'\ntR.", "it makes a Decimal of a str that is no number"),
        (b"cdecimal\nDecimal\n(I1\ntR.", "it makes a Decimal of a int that is no number"),
        (b"cdecimal\nDecimal\n)R.", "it calls decimal.Decimal with what makes no sense"),
        (
            b"cnumpy\ndtype\n(S'O8'\ntRq\x01cnumpy.core.multiarray\nscalar\n(h\x01S''\ntR.",
            "it has a dtype 'O8' that makes no sense",
        ),
        (b"cnumpy\ndtype\n(S'S999999'\ntRq\x01cnumpy.core.multiarray\nscalar\n(h\x01S''\ntR.", "that is not read"),
        (b"cnumpy\ndtype\n(S'i4'\ntRq\x01cnumpy.core.multiarray\nscalar\n(h\x01S'ab'\ntR.", "it makes a int32 of 2 bytes"),
        (b"cnumpy\ndtype\n(S'i5'\ntRq\x01cnumpy.core.multiarray\nscalar\n(h\x01S'ab'\ntR.", "that NumPy does not know"),
        (b"ccollections\ndefaultdict\n(cbuiltins\nint\ntR.", "it makes a defaultdict of the name builtins.int"),
        (b"cbuiltins\nset\n((S'a'\nltR.", "it makes a set of what are no numbers of row groups"),
        (b"cpyspark.serializers\n_restore\n(S'Other'\n))tR.", "it restores a named tuple that is no UnischemaField"),
        (b"cpyspark.serializers\n_restore\n(S'UnischemaField'\n(Nt(NttR.", "it restores a UnischemaField whose parts make no"),
        (
            b"ccopyreg\n_reconstructor\n(cpetastorm.codecs\nNdarrayCodec\ncbuiltins\nint\nNtR.",
            "by way of the name builtins.int",
        ),
    ],
)
def test_hostile_pickles_are_refused(data: bytes, message: str) -> None:
    """Damaged and hostile pickles raise PickleProblem, each with its own message."""
    with pytest.raises(PickleProblem) as caught:
        interpret(data)

    assert message in str(caught.value)


def test_a_pickle_that_is_too_large_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle with more bytes than the limit raises PickleProblem."""
    monkeypatch.setattr(_pickles, "MAX_BYTES", 10)

    with pytest.raises(PickleProblem, match="it has 11 bytes, and 10 are read at most"):
        interpret(b"N" * 11)


def test_many_decimals_as_keys_are_refused() -> None:
    """Many decimals as keys raise PickleProblem, because their hashes can be chosen to collide."""
    numbers = [str(k * (2**61 - 1)).encode() for k in range(1, 6000)]
    calls = b"".join(b"h\x00X" + len(text).to_bytes(4, "little") + text + b"\x85RNs" for text in numbers)

    with pytest.raises(PickleProblem, match="more than 4096 decimals stands where a key"):
        interpret(b"cdecimal\nDecimal\nq\x000}" + calls + b".")


def test_deep_and_shared_values_are_refused() -> None:
    """Tuples that are nested 100 000 deep, or 2 ** 1000 by sharing, raise PickleProblem without being walked over."""
    for data in (b")" + b"\x85" * 100_000 + b".", b")" + b"2\x86" * 1000 + b"."):
        with pytest.raises(PickleProblem, match=r"it holds a tuple, and a petastorm\.unischema\.Unischema was expected"):
            load_unischema(data)


UNISCHEMA, FIELD = Global("petastorm.unischema", "Unischema"), Global("petastorm.unischema", "UnischemaField")
INT, ARRAY = Global("numpy", "int32"), Instance(Global("petastorm.codecs", "NdarrayCodec"))


def unischema(*parts: Any) -> bytes:
    """Return the pickle of a Unischema whose one field has these parts."""
    return to_pickle(Instance(UNISCHEMA, (), {"_name": "S", "_fields": OrderedDict(x=Instance(FIELD, parts))}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (to_pickle(None), "it holds nothing, and a petastorm.unischema.Unischema was expected"),
        (to_pickle(Instance(UNISCHEMA)), "it holds a petastorm.unischema.Unischema"),
        (to_pickle(Instance(UNISCHEMA, (), {"_name": 1, "_fields": {}})), "its Unischema is called a int"),
        (to_pickle(Instance(UNISCHEMA, (), {"_name": "S", "_fields": {"x": 1}})), "a int stands where a petastorm.unischema"),
        (to_pickle(Instance(Global("our.place", "Schema"), (), {"_name": "S"})), "it holds a our.place.Schema"),
        (unischema("x", INT), "stands where a petastorm.unischema.UnischemaField was expected"),
        (unischema(1, INT, (), None), "a int stands where the name of a field was expected"),
        (unischema("x", Global("our.types", "Angle"), ()), "the name our.types.Angle stands where a type of NumPy was"),
        (unischema("x", INT, 3), "its field 'x' makes no sense: a int stands where a shape was expected"),
        (unischema("x", INT, (-1,)), "its shape has sizes that are none"),
        (unischema("x", INT, ("a",)), "its shape has sizes that are none"),
        (unischema("x", INT, (), "npy"), "a str stands where a codec was expected"),
        (unischema("x", INT, (), Instance(Global("pyspark.sql.types", "LongType"))), "stands where a codec was expected"),
        (unischema("x", INT, (), Instance(ARRAY.kind, (), 3)), "a int stands where attributes were expected"),
    ],
)
def test_an_invalid_schema_is_reported_with_its_field(data: bytes, message: str) -> None:
    """A harmless pickle that is not a valid schema raises PickleProblem, which says what is wrong."""
    with pytest.raises(PickleProblem) as caught:
        load_unischema(data)

    assert message in str(caught.value)


def test_attributes_with_too_many_shared_parts_are_refused() -> None:
    """Shared parts count as often as they occur, and too many of them in the codecs of all fields raise PickleProblem."""
    pairs = b"S'x'\n\x85" + b"2\x86" * 15
    codec = b"cour.codecs\nMine\n)\x81}S'a'\n" + pairs + b"sbq\x05"
    fields = b"".join(b"S'f%d'\nh\x07(S'f%d'\nh\x06)h\x05\x89t\x81" % (n, n) for n in range(40))
    names = b"cpetastorm.unischema\nUnischemaField\nq\x07cnumpy\nint8\nq\x06" + codec
    data = names + b"cpetastorm.unischema\nUnischema\n)\x81}(S'_name'\nS's'\nS'_fields'\n}(" + fields + b"uub."

    with pytest.raises(PickleProblem, match="its codecs have more than 500000 parts"):
        load_unischema(data)


def test_duplicate_names_and_names_that_are_not_text_are_refused() -> None:
    """Two fields with the same name, or a name that is not Unicode, raise PickleProblem."""
    field = Instance(FIELD, ("x", INT, (), None, False))
    twice = to_pickle(Instance(UNISCHEMA, (), {"_name": "S", "_fields": {"x": field, "y": field}}))

    with pytest.raises(PickleProblem, match="its Unischema has two fields of one name"):
        load_unischema(twice)
    with pytest.raises(PickleProblem, match="a name in it is no Unicode"):
        load_unischema(old_schema(b"petastorm").replace(b"Old \\xc3\\xa9", b"Old \\xe9"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps([]), "it holds a list, and indexes by name were expected"),
        (pickle.dumps({1: 2}), "it holds a dict"),
        (pickle.dumps({"a": 2}), "its index 'a' is a int, and a petastorm.etl.rowgroup_indexers.SingleFieldIndexer"),
        (to_pickle({"a": Instance(Global("our.indexes", "Mine"), (), {})}), "its index 'a' is a our.indexes.Mine"),
        (
            stored(petastorm_pickles.INDEXES, 0).replace(b"V_column_name\n", b"V_other_colum\n"),
            "its index 'by_label' has no name of its column",
        ),
        (
            stored(petastorm_pickles.INDEXES, 0).replace(b"\nFieldNotNullIndexer\n", b"\nSingleFieldIndexer\n"),
            "its index 'has_weight' holds a set, and values were expected",
        ),
    ],
)
def test_an_invalid_index_is_reported_with_its_name(data: bytes, message: str) -> None:
    """A pickle that is not an index of a Petastorm class raises PickleProblem, which names the index."""
    with pytest.raises(PickleProblem) as caught:
        load_indexes(data)

    assert message in str(caught.value)


@pytest.mark.parametrize("text", [b"[]", b"{", b'{"a": -1}', b'{"a": true}', b'{"a": 1.5}', b'{"a": "1"}', b"[" * 100_000])
def test_invalid_row_group_counts_are_refused(text: bytes) -> None:
    """Row group counts that are not a JSON object of paths and counts raise ValueError."""
    with pytest.raises(ValueError, match="it is no JSON"):
        load_row_groups(text)


NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
CODECS = st.sampled_from(
    [
        None,
        StoredCodec("petastorm.codecs.NdarrayCodec"),
        StoredCodec("petastorm.codecs.CompressedNdarrayCodec"),
        StoredCodec("petastorm.codecs.CompressedImageCodec", {"image_codec": ".png", "quality": 80}),
        StoredCodec("petastorm.codecs.ScalarCodec", {"spark_type": SparkType("LongType")}),
        StoredCodec("petastorm.codecs.ScalarCodec", {"spark_type": SparkType("DecimalType", {"precision": 38, "scale": 0})}),
    ]
)
STORED_FIELDS = st.builds(
    StoredField,
    name=NAMES | st.sampled_from(["fields", "_name", "__class__", "as_spark_schema"]),
    numpy_dtype=st.sampled_from([np.int8, np.uint64, np.float16, np.bool_, np.str_, np.bytes_, np.datetime64, Decimal, int]),
    shape=st.lists(st.none() | st.integers(0, 2**31 - 1), max_size=4).map(tuple),
    codec=CODECS,
    nullable=st.booleans(),
)


@given(
    name=st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    fields=st.lists(STORED_FIELDS, unique_by=lambda one: one.name),
)
def test_a_schema_survives_being_pickled_and_interpreted(name: str, fields: list[StoredField]) -> None:
    """A schema that is pickled and read back is equal."""
    schema = StoredSchema(name, tuple(fields))

    assert load_unischema(pickle_unischema(schema)) == schema


def test_a_field_is_one_object_in_the_pickle() -> None:
    """A field is stored by name and as an attribute, as one object; names that Unischema uses itself are no attributes."""
    fields = tuple(StoredField(name, np.int8, (), None, nullable=False) for name in ("x", "fields", "_name"))
    found = interpret(pickle_unischema(StoredSchema("S", fields)))

    assert found.state["x"] is found.state["_fields"]["x"]
    assert set(found.state) == {"_name", "_fields", "x"}
