"""The registry: which Paddle operators can be converted, how, and within which limits."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar

from paddle_ngraph.conversion import denylist
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.utils.change_counter import ChangeCounter
from paddle_ngraph.utils.dtypes import ARRAY_SUFFIX, DTYPES, Range
from paddle_ngraph.utils.fork_safe_locks import new_lock

# The first argument of a converter is the ``NgraphBridge``, which cannot be named here: its module
# imports this one.
ConverterFunction = Callable[[Any, Op], None]
RangeRule = Callable[[Op, Mapping[str, Range]], "Range | None"]
F = TypeVar("F", bound=ConverterFunction)

FLOAT = frozenset({"float32"})
INT32 = frozenset({"int32"})
INTEGER = frozenset({"int32", "int64"})
BOOL = frozenset({"bool"})
ANY = frozenset({"float32", "int32", "int64", "bool"})
# Dtypes of TensorArrays: for each dtype of elements the one with the suffix of arrays.
ARRAYS = frozenset(name + ARRAY_SUFFIX for name in ANY)
# Dtypes of inputs that are used for their shape only, or whose contents are known in a build.
KNOWN = frozenset(DTYPES)

RANGES: Mapping[str, Range] = {
    name: dtype.range for name, dtype in DTYPES.items() if dtype.range is not None
}
# The size that range rules assume for a dynamic dimension; converters must not exceed it.
MAX_AXIS_SIZE = 2**30

_NO_KERNEL = "Paddle has no CPU kernel for it; composed of smaller operators it is converted"
_USE_SEPARATE_UPDATES = (
    "Paddle's optimizers use one operator for each parameter in programs instead"
)
# The reason why an operator has no converter, by its type, if the report should say more than that.
ABSENT: Mapping[str, str] = {
    "pd_op.fused_rotary_position_embedding": _NO_KERNEL,
    "pd_op.fused_rotary_position_embedding_grad": _NO_KERNEL,
    "pd_op.merged_adam_": _USE_SEPARATE_UPDATES,
    "pd_op.merged_momentum_": _USE_SEPARATE_UPDATES,
    "pd_op.rms_norm": _NO_KERNEL,
    "pd_op.rms_norm_grad": _NO_KERNEL,
}


def range_of(values: Iterable[float]) -> Range | None:
    """The range of some numbers, as integers; ``None`` if one of them does not fit into 64 bits."""
    known = list(values)
    # The comparison is false for NaN, too: then there are no bounds.
    if not all(abs(value) < 2**63 for value in known):
        return None
    return int(min(known, default=0)), int(max(known, default=0))


@dataclass(frozen=True)
class Limit:
    """A condition for the conversion of an operator.

    Attributes:
        text: The sentence printed for an operator that falls back because of this limit.
        holds: Whether the operator is within the limit.
    """

    text: str
    holds: Callable[[Op], bool]


class Role(Enum):
    """The use of an input or output by a converter; see docs/development/adding_an_operator.md."""

    # Roles that an input of an operator may have.
    DATA = "computed with: of one of the converter's dtypes"
    INDEX = "indices or class labels: int32 or int64, in addition to the converter's dtypes"
    CONSTANT = "its contents are known when the function is built; of any dtype"
    SHAPE_ONLY = "used only for its shape and dtype"
    UNUSED = "not used at all: the engine does not get it"
    SAVED = "a value that the forward converter saved for this one, in a representation of its own"
    # Roles that an output of an operator may have.
    RESULT = "computed by the converter"
    OMITTED = "not computed: where the program uses it, the operator runs natively"
    WORKSPACE = "without contents, of any dtype: the bridge creates it"

    @property
    def is_of_inputs(self) -> bool:
        """Whether the role is one of inputs, not of outputs."""
        return self not in (Role.RESULT, Role.OMITTED, Role.WORKSPACE)

    @property
    def has_contents_read(self) -> bool:
        """Whether the contents of an input matter, in the build or in a run."""
        return self not in (Role.SHAPE_ONLY, Role.UNUSED)


@dataclass(frozen=True)
class Converter:
    """The conversion of a Paddle operator to nGraph nodes; its fields: see :func:`converter`."""

    type: str
    function: ConverterFunction
    dtypes: frozenset[str]
    inputs: Mapping[str, Role]
    outputs: Mapping[str, Role]
    limits: tuple[Limit, ...]
    draws: Callable[[Op], bool]
    moves: bool
    small_integers: bool
    integers: RangeRule | None
    checks: Callable[[Op], bool]
    rounds: bool
    unchecked: tuple[str, ...]
    open_starts: bool
    kept_for: str

    def role(self, input: str) -> Role:
        """The role of the input of this name."""
        return self.inputs.get(input, Role.DATA)

    def output_role(self, output: str) -> Role:
        """The role of the output of this name."""
        return self.outputs.get(output, Role.RESULT)

    def named(self, role: Role) -> list[str]:
        """The names of the inputs or outputs that have ``role``, which is not the default role."""
        side = self.inputs if role.is_of_inputs else self.outputs
        return [name for name, found in side.items() if found is role]

    def reason_against_roles(self, op: Op) -> str | None:
        """An error in declared roles, such as that of an input that ``op`` lacks, or ``None``."""
        sides = ("input", self.inputs, op.inputs), ("output", self.outputs, op.outputs)
        for side, roles, operands in sides:
            for name in sorted(roles.keys() - operands.keys()):
                return f"its converter gives a role to {side} '{name}', which it does not have"
        return None

    def reason_against(self, op: Op) -> str | None:
        """The reason why ``op`` has to fall back, or ``None`` if it can be converted."""
        if self.rounds:
            op = op.in_float32()
        if (reason := self.reason_against_dtypes(op)) is not None:
            return reason
        for limit in self.limits:
            if not limit.holds(op):
                return limit.text
        return None

    def reason_against_dtypes(self, op: Op) -> str | None:
        """The reason why ``op`` has to fall back for its dtypes, or ``None``."""
        for name, specs in op.inputs.items():
            allowed = self._dtypes_of(self.role(name))
            for spec in specs:
                if spec.dtype not in allowed:
                    return f"input '{name}' is {spec.dtype}, not {_either(allowed)}"
        for name, outputs in op.outputs.items():
            role = self.output_role(name)
            used = [spec for spec in outputs if spec is not None]
            if used and role is Role.OMITTED:
                return f"output '{name}' is used"
            for spec in used:
                if spec.dtype not in ANY | self.dtypes and role is not Role.WORKSPACE:
                    return f"output '{name}' is {spec.dtype}, not {_either(ANY | self.dtypes)}"
        return None

    def _dtypes_of(self, role: Role) -> frozenset[str]:
        """The dtypes that an input of this role may have, given the dtypes of the converter."""
        if role is Role.CONSTANT or not role.has_contents_read:
            return KNOWN | self.dtypes
        return self.dtypes | INTEGER if role is Role.INDEX else self.dtypes


_converters: dict[str, Converter] = {}
_left_native: frozenset[str] = frozenset()
_changes = ChangeCounter()


def converter(
    *types: str,
    dtypes: Iterable[str] = FLOAT,
    inputs: Mapping[str, Role] = MappingProxyType({}),
    outputs: Mapping[str, Role] = MappingProxyType({}),
    limits: Iterable[Limit] = (),
    draws: Callable[[Op], bool] = lambda op: False,
    moves: bool = False,
    small_integers: bool = False,
    integers: RangeRule | None = None,
    checks: Callable[[Op], bool] = lambda op: False,
    rounds: bool = True,
    unchecked: Iterable[str] = (),
    open_starts: bool = False,
    kept_for: str = "",
) -> Callable[[F], F]:
    """Registers the decorated function as the converter of the Paddle operators ``types``.

    Args:
        types: The operators' names, e.g. ``"pd_op.add", "pd_op.add_"``; the rest applies to each.
        dtypes: The dtypes its inputs may have; its outputs may have them too.
        inputs: The :class:`Role` of each input other than ``Role.DATA``.
        outputs: The role of each output other than ``Role.RESULT``.
        limits: Further conditions.
        draws: Whether an operator is stochastic: it samples by :meth:`NgraphBridge.draw`, even if
            its outputs have no reader.
        moves: The outputs contain elements of the inputs, unchanged. int64 tensors may pass, as
            long as they are only used as indices in the end.
        small_integers: int64 outputs are representable in int32 for all inputs.
        integers: The range of int64 outputs, given the ranges of the integer inputs; called only if
            all of these are known. ``None`` if the operator implies no range.
        checks: Whether runs can check int64 outputs for int32 overflow, where no range is known:
            the converter adds the check if ``op.checked``.
        rounds: Paddle's operator computes bfloat16 in float32 and rounds its results, so that the
            converter may see float32 (bfloat16.py). Otherwise it gets no bfloat16.
        unchecked: Inputs with indices that Paddle's kernel does not check. If one is out of range,
            the engine raises instead of leaving the run to Paddle; nothing else runs while such a
            function is compiled.
        open_starts: The operator takes slices. Inside loops and branches, inputs ``starts`` and
            ``ends`` need not be known where the length of each slice is certain (offsets.py).
        kept_for: What a call of Paddle's kernel would lack, for a converter that is not faster.

    Raises:
        NgraphError: There is already a converter for one of them, or a role is invalid.
    """
    _check_roles("inputs", inputs)
    _check_roles("outputs", outputs)

    def register(function: F) -> F:
        entry = Converter(
            type=types[0],
            function=function,
            dtypes=frozenset(dtypes),
            inputs=MappingProxyType(dict(inputs)),
            outputs=MappingProxyType(dict(outputs)),
            limits=tuple(limits),
            draws=draws,
            moves=moves,
            small_integers=small_integers,
            integers=integers,
            checks=checks,
            rounds=rounds,
            unchecked=tuple(unchecked),
            open_starts=open_starts,
            kept_for=kept_for,
        )
        for type in types:
            if type in _converters:
                raise NgraphError(f"there is a converter for {type} already: unregister it first")
            denylist.forget(type)
            _converters[type] = replace(entry, type=type)
        _changes.count()
        return function

    return register


def _check_roles(side: str, roles: Mapping[str, Role]) -> None:
    allowed = [role for role in Role if role.is_of_inputs == (side == "inputs")]
    for name, role in roles.items():
        if role not in allowed:
            raise NgraphError(
                f"{side}: the role of '{name}' is {role!s}, not {_either(map(str, allowed))}"
            )


def unregister(type: str) -> None:
    """Removes the converter of ``type``; the operator falls back from the next pass on."""
    load_converters()
    _converters.pop(type, None)
    _changes.count()


@contextmanager
def without(types: Iterable[str]) -> Iterator[None]:
    """Has operators of these types fall back inside the ``with`` block.

    Their converters are hidden, and functions call none of their kernels.
    """
    global _left_native
    load_converters()
    before, given = _left_native, frozenset(types)
    hidden = {type: _converters.pop(type) for type in given if type in _converters}
    _left_native = before | given
    _changes.count()
    try:
        yield
    finally:
        _left_native = before
        _converters.update(hidden)
        _changes.count()


def is_left_native(type: str) -> bool:
    """Whether operators of this type fall back for now, by :func:`without`."""
    return type in _left_native


def find_converter(type: str) -> Converter | None:
    """The converter of the Paddle operator ``type``, or ``None``."""
    load_converters()
    return _converters.get(type)


def all_converters() -> Mapping[str, Converter]:
    """All registered converters, by the name of the Paddle operator that they convert."""
    load_converters()
    return dict(sorted(_converters.items()))


def generation() -> int:
    """A number that is another one after a change of the converters."""
    load_converters()
    return _changes.value


def foreign_types() -> set[str]:
    """The operators whose converters come from outside this package."""
    ours = __package__.partition(".")[0] + "."
    return {t for t, entry in _converters.items() if not _module_of(entry).startswith(ours)}


def _module_of(entry: Converter) -> str:
    return entry.function.__module__ or ""  # none for code that exec() runs


_loaded = False
_load_lock = new_lock()


def load_converters() -> None:
    """Imports every module of ``paddle_ngraph.ops`` once; other threads wait until that is done."""
    global _loaded
    if _loaded:
        return
    with _load_lock:
        package = importlib.import_module("paddle_ngraph.ops")
        try:
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"paddle_ngraph.ops.{module.name}")
        except BaseException:
            _unload_partial_imports(package.__name__)
            raise
        _loaded = True


def _unload_partial_imports(package: str) -> None:
    """Drops converters of modules whose import was interrupted: a new import registers them."""
    for type, entry in list(_converters.items()):
        module = _module_of(entry)
        if module.startswith(package + ".") and module not in sys.modules:
            del _converters[type]


def _either(dtypes: Iterable[str]) -> str:
    return " or ".join(sorted(dtypes))
