"""Schema of the JSON of a graph string: a table of fields, and consistency checks.

A graph string is stored in saved programs, so it is untrusted. JSON that passes is a graph: every
field is present and has the right type; every tensor is declared, has an existing dtype and a
possible size, and is computed once, before it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paddle_ngraph.utils import dtypes

# The maximum rank of tensors in Paddle (phi::DDim).
MAX_RANK = 9
# More elements than fit into memory: shapes with more are rejected.
_MAX_ELEMENTS = 2**48
_MAX_NAME_LENGTH = 256
_MAX_INDEX = 2**31

# Number of blocks of an operator, by type; others have none.
BLOCKS = {"pd_op.while": 1, "pd_op.if": 2}

_ARRAYS = frozenset(name + dtypes.ARRAY_SUFFIX for name in dtypes.DTYPES)
DTYPES = dtypes.UNCONVERTED_DTYPES | dtypes.DTYPES.keys() | _ARRAYS


class Malformed(ValueError):
    """The JSON of a graph violates the schema; the message names the field."""


Check = Callable[[Any, str], None]


def _mismatch(location: str, value: Any, expected: str) -> Malformed:
    text = repr(value)
    return Malformed(f"{location} is {text[:60]}{'...' * (len(text) > 60)}, not {expected}")


def _non_negative(value: Any, location: str) -> None:
    # Compares type(), since isinstance() would accept bool.
    if type(value) is not int or not 0 <= value < _MAX_INDEX:
        raise _mismatch(location, value, "an integer of at least 0")


def _boolean(value: Any, location: str) -> None:
    if type(value) is not bool:
        raise _mismatch(location, value, "true or false")


def _name(value: Any, location: str) -> None:
    plain = isinstance(value, str) and value.isascii() and value.isprintable()
    if not plain or not 0 < len(value) <= _MAX_NAME_LENGTH:
        raise _mismatch(location, value, "a name")


def _dtype(value: Any, location: str) -> None:
    if not isinstance(value, str) or value not in DTYPES:
        raise _mismatch(location, value, "a dtype")


def _shape(value: Any, location: str) -> None:
    if not isinstance(value, list) or len(value) > MAX_RANK:
        raise _mismatch(location, value, f"a list of at most {MAX_RANK} dimensions")
    elements = 1
    for dim in value:
        if type(dim) is not int or dim < -1:
            raise _mismatch(location, value, "a list of sizes, -1 for dynamic ones")
        elements *= max(dim, 1)
        if elements > _MAX_ELEMENTS:
            raise _mismatch(location, value, "a shape that fits into memory")


def _unchecked(value: Any, location: str) -> None:
    """The check of an operator's attribute: accepts any value, since converters check them."""


def _optional(check: Check) -> Check:
    def check_optional(value: Any, location: str) -> None:
        if value is not None:
            check(value, location)

    return check_optional


def _list_of(check: Check) -> Check:
    def check_list(value: Any, location: str) -> None:
        if not isinstance(value, list):
            raise _mismatch(location, value, "a list")
        for item in value:
            check(item, location)

    return check_list


def _by_name(check: Check) -> Check:
    def check_dict(value: Any, location: str) -> None:
        if not isinstance(value, dict):
            raise _mismatch(location, value, "an object")
        for key, item in value.items():
            _name(key, location)
            check(item, f"{location}.{key}")

    return check_dict


def _record(fields: dict[str, Check], optional: frozenset[str] = frozenset()) -> Check:
    def check_record(value: Any, location: str) -> None:
        if not isinstance(value, dict):
            raise _mismatch(location, value, "an object")
        odd = sorted((value.keys() ^ fields.keys()) - optional)
        if odd:
            raise Malformed(
                f"{location} lacks or should not have {', '.join(map(repr, odd))[:200]}"
            )
        for name, item in value.items():
            fields[name](item, f"{location}.{name}")

    return check_record


def _row(*checks: Check) -> Check:
    def check_row(value: Any, location: str) -> None:
        if not isinstance(value, list) or len(value) != len(checks):
            raise _mismatch(location, value, f"a list of {len(checks)}")
        for check, item in zip(checks, value):
            check(item, location)

    return check_row


# Properties that only Paddle's operator needs (``graph.FallbackForm``): types of attributes, inputs
# and outputs that are lists, unused inputs, results that differ from the outputs.
_FORM = _row(
    _by_name(_name),
    _list_of(_name),
    _list_of(_name),
    _by_name(_list_of(_non_negative)),
    _by_name(_list_of(_non_negative)),
)


def _blocks(value: Any, location: str) -> None:
    _list_of(_check_block)(value, location)


_OPERATOR: dict[str, Check] = {
    "type": _name,
    "index": _non_negative,
    "inputs": _by_name(_list_of(_non_negative)),
    "outputs": _by_name(_list_of(_optional(_non_negative))),
    "attrs": _by_name(_unchecked),
    "form": _FORM,
    "blocks": _blocks,
    "checked": _boolean,
    "called": _boolean,
}

_check_operator = _record(_OPERATOR, optional=frozenset({"form", "blocks", "checked", "called"}))

# The fields of a block in an operator: name -> check of its value.
_BLOCK: dict[str, Check] = {
    "tensors": _list_of(_row(_non_negative, _dtype, _shape)),
    "inputs": _list_of(_non_negative),
    "outputs": _list_of(_non_negative),
    "ops": _list_of(_check_operator),
}

_check_block = _record(_BLOCK)

_GRAPH: dict[str, Check] = {
    **_BLOCK,
    "states": _list_of(_non_negative),
    "state_outputs": _list_of(_non_negative),
    "value_inputs": _list_of(_non_negative),
    "weights": _list_of(_non_negative),
    "eager_weights": _boolean,
    "adapts": _boolean,
    "gradients": _list_of(_name),
    "threads": _non_negative,
    "runs_at_once": _non_negative,
    "device": _name,
}

_check_graph = _record(
    _GRAPH, optional=frozenset({"gradients", "eager_weights", "threads", "runs_at_once", "device"})
)


def check(data: Any) -> None:
    """Raises Malformed if ``data``, parsed JSON, is not a valid graph."""
    _check_graph(data, "graph")
    known = _check_tensors(data)
    _check_boundary(data, known)
    _check_flow(data, known)


def _check_tensors(data: dict[str, Any]) -> set[int]:
    known = {row[0] for row in data["tensors"]}
    if len(known) != len(data["tensors"]):
        raise Malformed("two tensors have the same id")
    return known


def _check_boundary(data: dict[str, Any], known: set[int]) -> None:
    read = data["inputs"] + data["states"]
    if len(set(read)) != len(read):
        raise Malformed("a tensor is an input twice")
    if len(data["states"]) != len(data["state_outputs"]):
        raise Malformed("states and their new values differ in number")
    for field, end in (("value_inputs", len(read)), ("weights", len(data["inputs"]))):
        positions = data[field]
        if len(set(positions)) != len(positions) or any(index >= end for index in positions):
            raise Malformed(f"{field} has an index twice, or one beyond the {end} there are")
    dtype_of = {number: dtype for number, dtype, _ in data["tensors"]}
    for field in ("inputs", "states", "outputs", "state_outputs"):
        _require(data[field], known, f"graph.{field}")
        allowed = dtypes.DTYPES.keys() | (set() if "state" in field else dtypes.BYTES.keys())
        for dtype in {dtype_of[number] for number in data[field]} - allowed:
            name = "a TensorArray" if dtype in _ARRAYS else f"a tensor of {dtype}"
            raise Malformed(f"graph.{field}: {name} has no representation outside an interval")


def _check_blocks(op: dict[str, Any], tensors: dict[int, list[Any]]) -> None:
    """Checks that blocks are graphs, with the input and output dtypes of their operator."""
    op_type, blocks = op["type"], op.get("blocks", [])
    if len(blocks) != BLOCKS.get(op_type, 0):
        raise Malformed(f"{op_type} has {len(blocks)} blocks")
    if not blocks:
        return
    inputs, form = op["inputs"], op.get("form", [{}, [], [], {}, {}])
    if inputs.keys() != {"cond", "inputs", "captured"} or op["outputs"].keys() != {"out"}:
        raise Malformed(f"{op_type} has other inputs and outputs")
    starts, produced = inputs["inputs"], form[4].get("out", op["outputs"]["out"])
    is_loop = op_type == "pd_op.while"
    if len(inputs["cond"]) != 1 or len(starts) != (len(produced) if is_loop else 0):
        raise Malformed(f"{op_type} yields another number of values than its initial values")
    for block in blocks:
        known = _check_tensors(block)
        own = {row[0]: row for row in block["tensors"]}
        _require(block["inputs"], known, f"an input inside {op_type}")
        if len(set(block["inputs"])) != len(block["inputs"]):
            raise Malformed(f"inside {op_type}, a tensor is an input twice")
        _check_flow({"states": [], "state_outputs": [], **block}, known)
        read = [*starts, *inputs["captured"]]
        results = [*(inputs["cond"] if is_loop else ()), *produced]
        for theirs, mine in ((read, block["inputs"]), (results, block["outputs"])):
            if [tensors[n][1] for n in theirs if n is not None] != [
                own[n][1] for n, other in zip(mine, theirs) if other is not None
            ] or len(mine) != len(theirs):
                raise Malformed(f"the blocks of {op_type} have other inputs or outputs")


def _check_flow(data: dict[str, Any], known: set[int]) -> None:
    """Checks that every tensor is computed once, before it is read."""
    tensors = {row[0]: row for row in data["tensors"]}
    # Ids of the tensors that converters have computed so far.
    defined = {*data["inputs"], *data["states"]}
    # Ids of all tensors that Paddle has computed, with outputs that have no reader or that
    # converters omit.
    defined_by_paddle = set(defined)
    for op in data["ops"]:
        for name, ids in op["inputs"].items():
            _require(ids, defined, f"input '{name}' of {op['type']}")
        outputs = {
            name: [number for number in ids if number is not None]
            for name, ids in op["outputs"].items()
        }
        _check_form(op, outputs, known, defined_by_paddle)
        _check_blocks(op, tensors)
        for name, produced in outputs.items():
            _require(produced, known, f"output '{name}' of {op['type']}")
            _add_new(produced, defined, f"output '{name}' of {op['type']}")
    for field in ("outputs", "state_outputs"):
        _require(data[field], defined, f"graph.{field}")


def _check_form(
    op: dict[str, Any], outputs: dict[str, list[int]], known: set[int], defined: set[int]
) -> None:
    """Checks the ``form`` for the fallback: unused inputs exist, results include the outputs."""
    *_, unused, differing = op.get("form", [{}, {}])
    for name, ids in unused.items():
        _require(ids, defined, f"unused input '{name}' of {op['type']}")
    if not differing.keys() <= outputs.keys():
        raise Malformed(f"{op['type']} has results that are not outputs")
    for name, produced in outputs.items():
        location = f"result '{name}' of {op['type']}"
        results = differing.get(name, produced)
        _require(results, known, location)
        _require(produced, set(results), location)
        _add_new(results, defined, location)


def _add_new(produced: list[int], defined: set[int], location: str) -> None:
    if len(set(produced)) != len(produced) or not defined.isdisjoint(produced):
        raise Malformed(f"{location} is computed twice")
    defined.update(produced)


def _require(ids: list[int], defined: set[int], location: str) -> None:
    if not defined.issuperset(ids):
        missing = next(number for number in ids if number not in defined)
        raise Malformed(f"{location}: tensor {missing} is not there")
