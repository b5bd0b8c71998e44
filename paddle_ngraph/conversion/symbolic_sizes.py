"""Symbolic sizes.

A function with dynamic shapes is built once, at the current shapes. Results that a converter then
computes from a dynamic dimension must hold for all other values of it, or the values for which they
hold must be known. So a dynamic dimension is a :class:`SymbolicSize`. A size behaves like its
current value, the *hint*, but records how it is computed from dynamic dimensions. Code that makes a
decision by a size, or uses it as a plain integer, adds a *guard*: a condition on the dynamic
dimensions under which the decision is the same. The function is valid exactly where its guards
hold.

An expression is a polynomial with integer coefficients over *atoms*: a symbol (one per dynamic
dimension), or the floor of a quotient of polynomials. Equal polynomials are equal tuples, so most
comparisons of equal sizes need no guard, and neither do those that follow from known bounds.

In a loop, a size may vary between iterations: then the iteration index is a symbol, too. A guard on
it could not be checked before a run, so decisions by it must be the same in all iterations, perhaps
under guards on other symbols: any other decision raises :class:`Undecided`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from paddle_ngraph.errors import NgraphError

# A factor of a polynomial: (0, symbol), or the floor of a quotient: (1, dividend, divisor).
Atom = tuple[Any, ...]
Monomial = tuple[Atom, ...]  # a product of atoms, sorted; that of the constant term is ()
# A polynomial: (monomial, coefficient) pairs, sorted, without coefficients of 0.
Terms = tuple[tuple[Monomial, int], ...]

Number = Any  # a size, axis or index: an int or a SymbolicSize

# Dynamic dimensions lie between these. Sizes 0 (nothing to compute) and 1 (repeated along the axis)
# are special; functions for such shapes have a static dimension.
MIN_SYMBOLIC_SIZE = 2
MAX_SYMBOLIC_SIZE = 2**31 - 1

# The upper bound of iteration counts: any smaller count is exact in float32. Where sizes would
# overflow int32 within as many iterations, the bound is divided by _ITERATION_REDUCTION_FACTOR,
# repeatedly.
MAX_ITERATIONS = 2**24
_ITERATION_REDUCTION_FACTOR = 16

# Opcodes of guards encoded as words; core/engine/size_guards.h decodes them.
_CONSTANT, _SYMBOL, _ADD, _MULTIPLY, _FLOOR_DIVIDE = range(5)
AT_LEAST_ZERO, ZERO, NOT_ZERO = range(3)


# -- polynomials ---------------------------------------------------------------------------------


def _polynomial(terms: Mapping[Monomial, int]) -> Terms:
    return tuple(sorted((monomial, factor) for monomial, factor in terms.items() if factor))


def _constant(number: int) -> Terms:
    return (((), number),) if number else ()


def _sum(a: Terms, b: Terms, factor: int = 1) -> Terms:
    """The polynomial ``a + factor * b``."""
    terms = dict(a)
    for monomial, coefficient in b:
        terms[monomial] = terms.get(monomial, 0) + factor * coefficient
    return _polynomial(terms)


def _product(a: Terms, b: Terms) -> Terms:
    terms: dict[Monomial, int] = {}
    for left, x in a:
        for right, y in b:
            monomial = tuple(sorted(left + right))
            terms[monomial] = terms.get(monomial, 0) + x * y
    return _polynomial(terms)


def _split_constant(terms: Terms) -> tuple[Terms, int]:
    """A polynomial without its constant term, and the constant term."""
    if terms and not terms[0][0]:
        return terms[1:], terms[0][1]
    return terms, 0


def _exact_quotient(a: Terms, b: Terms) -> Terms | None:
    """The polynomial ``a / b``; ``None`` if the quotient is no polynomial."""
    quotient: Terms = ()
    lead, factor = max(b, key=lambda term: (len(term[0]), term[0]))
    while a:
        monomial, coefficient = max(a, key=lambda term: (len(term[0]), term[0]))
        rest = list(monomial)
        for atom in lead:
            if atom not in rest:
                return None
            rest.remove(atom)
        if coefficient % factor:
            return None
        term = ((tuple(rest), coefficient // factor),)
        quotient = _sum(quotient, term)
        a = _sum(a, _product(term, b), -1)
    return quotient


def _floor_quotient(a: Terms, b: Terms) -> Terms:
    """``a // b`` for ``b`` > 0: terms divisible by ``b`` are taken out of the quotient."""
    exact = _exact_quotient(a, b)
    if exact is not None:
        return exact
    divisor = _number(b)
    if divisor is None:
        return ((((1, a, b),), 1),)
    quotient = _polynomial({monomial: coefficient // divisor for monomial, coefficient in a})
    rest, constant = _split_constant(_sum(a, quotient, -divisor))
    if not rest:
        return quotient
    common = math.gcd(divisor, *(coefficient for _, coefficient in rest))
    rest = _polynomial({monomial: coefficient // common for monomial, coefficient in rest})
    remainder, divisor = _sum(rest, _constant(constant // common)), divisor // common
    if divisor == 1:
        return _sum(quotient, remainder)
    inner = _as_quotient(rest)
    # If the dividend is itself a floor of a quotient, both floors are merged into one.
    if inner is not None and (by := _number(inner[1])) is not None:
        dividend = _sum(inner[0], _constant(constant // common * by))
        return _sum(quotient, _floor_quotient(dividend, _constant(divisor * by)))
    return _sum(quotient, ((((1, remainder, _constant(divisor)),), 1),))


def _number(terms: Terms) -> int | None:
    """The value of a constant polynomial; ``None`` if it has symbols."""
    rest, constant = _split_constant(terms)
    return None if rest else constant


def _as_quotient(terms: Terms) -> tuple[Terms, Terms] | None:
    """Dividend and divisor if ``terms`` is the floor of one quotient; else ``None``."""
    if len(terms) != 1 or terms[0][1] != 1 or len(terms[0][0]) != 1 or terms[0][0][0][0] == 0:
        return None
    return terms[0][0][0][1], terms[0][0][0][2]


def evaluate(terms: Terms, values: Mapping[int, int]) -> int:
    """The value of a polynomial, given the value of each symbol."""
    total = 0
    for monomial, product in terms:
        for atom in monomial:
            product *= (
                values[atom[1]]
                if atom[0] == 0
                else evaluate(atom[1], values) // evaluate(atom[2], values)
            )
        total += product
    return total


def _symbols_in(terms: Terms) -> set[int]:
    """The symbols in a polynomial."""
    found: set[int] = set()
    for monomial, _ in terms:
        for atom in monomial:
            found |= {atom[1]} if atom[0] == 0 else _symbols_in(atom[1]) | _symbols_in(atom[2])
    return found


def _substituted(terms: Terms, values: Mapping[int, Terms]) -> Terms:
    """The polynomial with each symbol in ``values`` replaced by a polynomial."""
    total: Terms = ()
    for monomial, coefficient in terms:
        product = _constant(coefficient)
        for atom in monomial:
            if atom[0] == 0:
                factor = values.get(atom[1], (((atom,), 1),))
            else:
                factor = _floor_quotient(
                    _substituted(atom[1], values), _substituted(atom[2], values)
                )
            product = _product(product, factor)
        total = _sum(total, product)
    return total


# -- guards --------------------------------------------------------------------------------------


class Undecided(NgraphError):
    """A decision of the build depends on an iteration index or count, which only a run knows."""

    def __init__(self) -> None:
        super().__init__("a decision of the build depends on the number of iterations of a loop")


class Guard(NamedTuple):
    """A condition: ``terms`` are at least 0, equal to 0 or not equal to 0, by ``kind``."""

    kind: int
    terms: Terms

    def holds(self, values: Mapping[int, int]) -> bool:
        """Whether the condition of this guard holds for these values of the symbols."""
        try:
            value = evaluate(self.terms, values)
        except ZeroDivisionError:
            # The divisor is 0, for which another guard does not hold either: the values are not
            # valid.
            return False
        return (value >= 0, value == 0, value != 0)[self.kind]


def to_words(guards: Sequence[Guard], indices: Mapping[int, int]) -> list[int]:
    """Encodes guards for the core, which evaluates them by a stack machine (size_guards.h).

    For each guard: the count of words that follow, the kind, and a program for the machine.

    Args:
        guards: The guards.
        indices: The index by which the machine's programs name each symbol.
    """
    words: list[int] = []
    for guard in guards:
        program = [guard.kind, *_program(guard.terms, indices)]
        words += [len(program), *program]
    return words


def _program(terms: Terms, indices: Mapping[int, int]) -> list[int]:
    words = [_CONSTANT, 0]
    for monomial, factor in terms:
        words += [_CONSTANT, factor]
        for atom in monomial:
            if atom[0] == 0:
                words += [_SYMBOL, indices[atom[1]]]
            else:
                words += [*_program(atom[1], indices), *_program(atom[2], indices), _FLOOR_DIVIDE]
            words.append(_MULTIPLY)
        words.append(_ADD)
    return words


def distance_guard(symbol: int, other: int, distance: int) -> Guard:
    """The guard that one symbol is the sum of another one and a distance."""
    terms = {((0, symbol),): 1, ((0, other),): -1, (): -distance}
    return Guard(ZERO, _polynomial(terms))


class Guards:
    """The symbols of one build, and the decisions that depend on them.

    Args:
        hints: The current value of each symbol.
    """

    def __init__(self, hints: Mapping[int, int]) -> None:
        self.hints = dict(hints)
        # Known lower bounds of polynomials without constant term and common factor; an upper bound
        # is minus the lower bound of the negative.
        self._lower_bounds: dict[Terms, int] = {}
        self._unequal: set[Terms] = set()
        self._guards: dict[tuple[int, Terms], Guard] = {}
        # Ids of the symbols of iteration indices and counts, all negative.
        self._iteration_symbols: list[int] = []
        # For each symbol of an iteration index, an upper bound of the index.
        self._last_iterations: dict[int, Terms] = {}
        # For each symbol that iterations check, since no known size bounds it: all such symbols of
        # its loop.
        self._checked: dict[int, list[int]] = {}
        # For each iteration symbol whose loop can still be required to have an iteration, so that
        # the symbol is at least 1: a function that has each run check that.
        self._requirements: dict[int, Callable[[], None]] = {}
        self._requires_iterations = False
        self._values = dict(hints)
        for symbol in hints:
            self.require(Guard(AT_LEAST_ZERO, (((), -MIN_SYMBOLIC_SIZE), (((0, symbol),), 1))))
            self.require(Guard(AT_LEAST_ZERO, (((), MAX_SYMBOLIC_SIZE), (((0, symbol),), -1))))

    def size(self, symbol: int) -> SymbolicSize:
        """The size that consists of one symbol."""
        return SymbolicSize(self, ((((0, symbol),), 1),))

    def new_iteration_symbol(
        self, hint: int, last: Number | None = None, like: SymbolicSize | None = None
    ) -> SymbolicSize:
        """A new symbol for an iteration index or count, at least 0.

        Args:
            hint: The value of the symbol, only for current shapes.
            last: Its upper bound, at least 0; ``None`` if unknown, so that each iteration of the
                loop checks it.
            like: Another symbol of the same loop, checked too.
        """
        symbol = -1 - len(self._iteration_symbols)
        self._iteration_symbols.append(symbol)
        self._values[symbol] = hint
        size = self.size(symbol)
        self._lower_bounds[size.terms] = 0
        if last is None:
            upper = MAX_ITERATIONS - 1 if like is None else self.max_iterations(like)
            loop_symbols = [] if like is None else self._checked[_only_symbol_in(like)]
            loop_symbols.append(symbol)
            self._checked[symbol] = loop_symbols
            self._set_last_iteration(symbol, _constant(upper))
        else:
            self._set_last_iteration(
                symbol, last.terms if isinstance(last, SymbolicSize) else _constant(last)
            )
        return size

    def max_iterations(self, iterations: SymbolicSize) -> int:
        """Upper bound of the iteration index, or iteration count, ``iterations``."""
        return self.bounds(iterations.terms)[1]

    def bound_iterations(self, terms: Terms) -> bool:
        """Reduces the bounds of those iteration symbols in ``terms`` that runs check per iteration.

        Returns:
            Whether any bound could be reduced.
        """
        is_bounded = False
        for symbols in (self._checked[n] for n in _symbols_in(terms) if n in self._checked):
            fewer = (
                self.max_iterations(self.size(symbols[0])) + 1
            ) // _ITERATION_REDUCTION_FACTOR - 1
            if fewer < max(self._values[symbol] for symbol in symbols):
                continue
            for symbol in symbols:
                self._set_last_iteration(symbol, _constant(fewer))
            is_bounded = True
        return is_bounded

    def let_require(self, count: SymbolicSize, require: Callable[[], None]) -> None:
        """Registers a function that has each run check that an iteration count is not 0."""
        self._requirements[_only_symbol_in(count)] = require

    @contextmanager
    def requiring_iterations(self) -> Iterator[None]:
        """Inside ``with``, decisions may require that loops before them have an iteration."""
        before, self._requires_iterations = self._requires_iterations, True
        try:
            yield
        finally:
            self._requires_iterations = before

    def numbers(self) -> list[int]:
        """The ids of all symbols: those of dynamic dimensions, and those of iterations."""
        return [*self.hints, *self._iteration_symbols]

    def _set_last_iteration(self, symbol: int, last: Terms) -> None:
        self._last_iterations[symbol] = last
        self._lower_bounds[((((0, symbol),), -1),)] = -min(self.bounds(last)[1], MAX_ITERATIONS - 1)

    def varies_per_iteration(self, terms: Terms) -> bool:
        """Whether a polynomial may have different values in two iterations of a loop."""
        return any(symbol < 0 for symbol in _symbols_in(terms))

    def value(self, terms: Terms) -> int:
        """The value of ``terms`` if the symbols have the values of their hints."""
        return evaluate(terms, self._values)

    def of(self, terms: Terms) -> Number:
        """A polynomial as an int if it is constant, else as a SymbolicSize."""
        rest, constant = _split_constant(terms)
        return SymbolicSize(self, terms) if rest else constant

    # -- decisions -------------------------------------------------------------------------------

    def is_at_least_zero(self, terms: Terms) -> bool:
        """Whether ``terms >= 0``; adds a guard if that is not known for every value."""
        lower, upper = self.bounds(terms)
        if lower >= 0 or upper < 0:
            return lower >= 0
        if self.varies_per_iteration(terms):
            return self._is_at_least_zero_in_every_iteration(terms)
        if evaluate(terms, self.hints) >= 0:
            self._add(Guard(AT_LEAST_ZERO, terms))
            return True
        self._add(Guard(AT_LEAST_ZERO, _sum(_constant(-1), terms, -1)))
        return False

    def is_zero(self, terms: Terms) -> bool:
        """Whether the polynomial ``terms`` is 0; adds a guard unless known for every value."""
        lower, upper = self.bounds(terms)
        if lower > 0 or upper < 0 or terms in self._unequal:
            return False
        if lower == upper == 0:
            return True
        if self.varies_per_iteration(terms):
            return self._is_zero_in_every_iteration(terms)
        if evaluate(terms, self.hints) == 0:
            self._add(Guard(ZERO, terms))
            return True
        if lower == 0:
            self._add(Guard(AT_LEAST_ZERO, _sum(terms, _constant(-1))))
        elif upper == 0:
            self._add(Guard(AT_LEAST_ZERO, _sum(_constant(-1), terms, -1)))
        else:
            self._add(Guard(NOT_ZERO, terms))
        return False

    def fix(self, terms: Terms) -> int:
        """The current value of ``terms``; adds guards so that no other value is valid."""
        lower, upper = self.bounds(terms)
        if lower == upper:
            return lower
        if self.varies_per_iteration(terms):
            raise Undecided
        value = evaluate(terms, self.hints)
        symbols = _symbols_in(terms)
        # Fixes the value of each symbol, and not only that of the terms: few other values of
        # several symbols give the same result.
        for symbol in symbols if len(symbols) > 1 else ():
            self.fix(((((0, symbol),), 1),))
        self.is_zero(_sum(terms, _constant(value), -1))
        return value

    def _is_at_least_zero_in_every_iteration(self, terms: Terms) -> bool:
        """Whether ``terms >= 0`` in all iterations or in none; may add guards. Raises Undecided."""
        lower, upper = (self._bound_over_iterations(terms, sign) for sign in (1, -1))
        if lower is not None and evaluate(lower, self.hints) >= 0:
            return self.is_at_least_zero(lower)
        if upper is not None and evaluate(upper, self.hints) < 0:
            return self.is_at_least_zero(upper)
        if self._requires_iterations and self._require_iterations(terms):
            return self.is_at_least_zero(terms)
        raise Undecided

    def _require_iterations(self, terms: Terms) -> bool:
        """Requires an iteration of the loops that ``terms`` count, if that decides its sign."""
        counted = [symbol for symbol in _symbols_in(terms) if symbol in self._requirements]
        keys = [self.size(symbol).terms for symbol in counted]
        before = {key: self._lower_bounds[key] for key in keys}
        self._lower_bounds.update(dict.fromkeys(keys, 1))
        lower, upper = self.bounds(terms)
        if lower < 0 <= upper:
            self._lower_bounds.update(before)
            return False
        for symbol in counted:
            self._requirements.pop(symbol)()
        return True

    def _is_zero_in_every_iteration(self, terms: Terms) -> bool:
        """Whether the polynomial ``terms`` is 0 in all iterations (``True``) or in none.

        May add guards. Raises Undecided if neither is certain.
        """
        return self.is_at_least_zero(terms) and not self.is_at_least_zero(
            _sum(terms, _constant(-1))
        )

    def _bound_over_iterations(self, terms: Terms, sign: int) -> Terms | None:
        """A lower bound of ``terms`` over all iterations, upper for sign -1, or ``None``."""
        found: Terms = ()
        for monomial, coefficient in terms:
            term: Terms = ((monomial, coefficient),)
            if self.varies_per_iteration(term):
                if not self._is_non_decreasing(monomial):
                    return None
                ends = (
                    dict.fromkeys(self._iteration_symbols, _constant(0))
                    if coefficient * sign > 0
                    else self._last_iterations
                )
                term = _substituted(term, ends)
            found = _sum(found, term)
        return (
            self._bound_over_iterations(found, sign) if self.varies_per_iteration(found) else found
        )

    def _is_non_decreasing(self, monomial: Monomial) -> bool:
        """Whether a monomial certainly never decreases from one iteration to the next."""
        return all(
            self._bounds_of_atom(atom)[0] >= 0
            and (
                atom[0] == 0
                or (
                    self._has_non_decreasing_terms(atom[1])
                    and not self.varies_per_iteration(atom[2])
                )
            )
            for atom in monomial
        )

    def _has_non_decreasing_terms(self, terms: Terms) -> bool:
        return all(
            coefficient > 0 and self._is_non_decreasing(monomial)
            for monomial, coefficient in terms
            if self.varies_per_iteration(((monomial, coefficient),))
        )

    def require(self, guard: Guard) -> None:
        """Adds a guard, which must hold at the hints."""
        if not guard.holds(self.hints):
            raise ValueError("a guard that does not hold where it was made")
        self._add(guard)

    def _add(self, guard: Guard) -> None:
        rest, constant = _split_constant(guard.terms)
        divisor = math.gcd(*(coefficient for _, coefficient in rest))
        primitive = tuple((monomial, coefficient // divisor) for monomial, coefficient in rest)
        opposite = tuple((monomial, -coefficient) for monomial, coefficient in primitive)
        if guard.kind == NOT_ZERO:
            self._unequal |= {guard.terms, _product(_constant(-1), guard.terms)}
            self._guards[NOT_ZERO, guard.terms] = guard
            return
        for bounded, added in [(primitive, constant), (opposite, -constant)]:
            # The least value of `bounded` for which `bounded * divisor + added >= 0`.
            lower = -(added // divisor)
            if bounded is primitive or guard.kind == ZERO:
                self._lower_bounds[bounded] = max(lower, self._lower_bounds.get(bounded, lower))
        if guard.kind == ZERO:
            self._guards[ZERO, guard.terms] = guard
        else:
            terms = _sum(primitive, _constant(-self._lower_bounds[primitive]))
            self._guards[AT_LEAST_ZERO, primitive] = Guard(AT_LEAST_ZERO, terms)

    # -- bounds and results ----------------------------------------------------------------------

    def bounds(self, terms: Terms) -> tuple[int, int]:
        """The lower and the upper bound of a polynomial that the guards imply."""
        rest, constant = _split_constant(terms)
        if not rest:
            return constant, constant
        lower, upper = self._bounds_of_terms(rest)
        low, high = self._bounds_of_remainders(rest)
        lower, upper = max(lower, low), min(upper, high)
        divisor = math.gcd(*(coefficient for _, coefficient in rest))
        primitive = tuple((monomial, coefficient // divisor) for monomial, coefficient in rest)
        opposite = tuple((monomial, -coefficient) for monomial, coefficient in primitive)
        if primitive in self._lower_bounds:
            lower = max(lower, self._lower_bounds[primitive] * divisor)
        if opposite in self._lower_bounds:
            upper = min(upper, -self._lower_bounds[opposite] * divisor)
        return lower + constant, upper + constant

    def _bounds_of_terms(self, terms: Terms) -> tuple[int, int]:
        """A lower and an upper bound of a polynomial: the sums of the bounds of its terms."""
        lower, upper = 0, 0
        for monomial, coefficient in terms:
            low, high = coefficient, coefficient
            for atom in monomial:
                products = [x * y for x in (low, high) for y in self._bounds_of_atom(atom)]
                low, high = min(products), max(products)
            lower, upper = lower + low, upper + high
        return lower, upper

    def _bounds_of_remainders(self, terms: Terms) -> tuple[int, int]:
        """Bounds from ``a - (b - 1) <= a // b * b <= a``."""
        quotients = {
            term: (dividend, divisor)
            for term in terms
            if (found := _as_quotient(((term[0], 1),))) is not None
            for dividend, divisor in [(found[0], _number(found[1]))]
            if divisor is not None
        }
        scale = math.lcm(*(d // math.gcd(d, term[1]) for term, (_, d) in quotients.items()))
        whole: Terms = tuple((m, n * scale) for m, n in terms if (m, n) not in quotients)
        low = high = 0
        for (_, coefficient), (dividend, divisor) in quotients.items():
            share = coefficient * scale // divisor
            whole = _sum(whole, dividend, share)
            low, high = (
                low - max(share, 0) * (divisor - 1),
                high - min(share, 0) * (divisor - 1),
            )
        lower, upper = self._bounds_of_terms(whole)
        return -(-(lower + low) // scale), (upper + high) // scale

    def _bounds_of_atom(self, atom: Atom) -> tuple[int, int]:
        key: Terms = (((atom,), 1),)
        if atom[0] == 0:
            lower, upper = self._lower_bounds.get(key, MIN_SYMBOLIC_SIZE), MAX_SYMBOLIC_SIZE
        else:
            (lower, upper), (low, high) = self.bounds(atom[1]), self.bounds(atom[2])
            corners = [x // max(y, 1) for x in (lower, upper) for y in (low, high)]
            lower, upper = min(corners), max(corners)
            lower = max(lower, self._lower_bounds.get(key, lower))
        opposite: Terms = (((atom,), -1),)
        return lower, min(upper, -self._lower_bounds.get(opposite, -upper))

    def fixed(self) -> dict[int, int]:
        """Symbols of dimensions for which the guards allow only one value, with that value."""
        bounds = {symbol: self._bounds_of_atom((0, symbol)) for symbol in self.hints}
        return {symbol: lower for symbol, (lower, upper) in bounds.items() if lower == upper}

    def remaining(self) -> list[Guard]:
        """The guards that are left once fixed symbols are constants, each guard once, sorted."""
        fixed = {symbol: _constant(value) for symbol, value in self.fixed().items()}
        found: dict[Guard, None] = {}
        for guard in self._guards.values():
            left = Guard(guard.kind, _substituted(guard.terms, fixed))
            if _split_constant(left.terms)[0]:
                found[left] = None
        return sorted(found)


# -- sizes ---------------------------------------------------------------------------------------


class SymbolicSize:
    """An integer computed from symbols.

    Not a subclass of int: C code would read its value without adding a guard.
    """

    __slots__ = ("guards", "terms")

    def __init__(self, guards: Guards, terms: Terms) -> None:
        self.guards = guards
        self.terms = terms

    @property
    def hint(self) -> int:
        """The size in the current run; only for results that need not hold for other sizes."""
        return self.guards.value(self.terms)

    def _combined(self, other: Any, function: Any, swapped: bool = False) -> Any:
        terms = _terms_of(other)
        if terms is None:
            return NotImplemented
        pair = (terms, self.terms) if swapped else (self.terms, terms)
        return self.guards.of(function(*pair))

    def __add__(self, other: Any) -> Any:
        return self._combined(other, _sum)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b: _sum(a, b, -1))

    def __rsub__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b: _sum(a, b, -1), swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._combined(other, _product)

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return 0 - self

    def __pos__(self) -> SymbolicSize:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __floordiv__(self, other: Any) -> Any:
        if _terms_of(other) is None:
            return NotImplemented
        if other == 0:
            raise ZeroDivisionError("integer division by zero")
        if other < 0:
            return -self // -other
        return self._combined(other, _floor_quotient)

    def __rfloordiv__(self, other: Any) -> Any:
        terms = _terms_of(other)
        if terms is None:
            return NotImplemented
        return SymbolicSize(self.guards, terms) // self

    def __mod__(self, other: Any) -> Any:
        return NotImplemented if _terms_of(other) is None else self - self // other * other

    def __rmod__(self, other: Any) -> Any:
        return NotImplemented if _terms_of(other) is None else other - other // self * self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __pow__(self, exponent: Any) -> Any:
        if not isinstance(exponent, int) or not 0 <= exponent <= 4:
            return int(self) ** exponent
        result: Any = 1
        for _ in range(exponent):
            result = result * self
        return result

    # -- decisions: guards

    def _is_at_least(self, other: Any, swapped: bool = False, more: int = 0) -> Any:
        terms = _terms_of(other)
        if terms is None:
            return NotImplemented
        difference = _sum(self.terms, terms, -1)
        if swapped:
            difference = _product(_constant(-1), difference)
        return self.guards.is_at_least_zero(_sum(difference, _constant(-more)))

    def __ge__(self, other: Any) -> Any:
        return self._is_at_least(other)

    def __gt__(self, other: Any) -> Any:
        return self._is_at_least(other, more=1)

    def __le__(self, other: Any) -> Any:
        return self._is_at_least(other, swapped=True)

    def __lt__(self, other: Any) -> Any:
        return self._is_at_least(other, swapped=True, more=1)

    def __eq__(self, other: Any) -> Any:
        terms = _terms_of(other)
        if terms is None:
            return NotImplemented
        return self.guards.is_zero(_sum(self.terms, terms, -1))

    def __ne__(self, other: Any) -> Any:
        is_equal = self.__eq__(other)
        return is_equal if is_equal is NotImplemented else not is_equal

    def __bool__(self) -> bool:
        return not self.guards.is_zero(self.terms)

    # -- uses as plain integers: fixed

    def __index__(self) -> int:
        return self.guards.fix(self.terms)

    __int__ = __index__

    def __hash__(self) -> int:
        return hash(int(self))

    def __float__(self) -> float:
        return float(int(self))

    def __truediv__(self, other: Any) -> Any:
        return int(self) / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / int(self)

    def __rpow__(self, base: Any) -> Any:
        return base ** int(self)

    def __str__(self) -> str:
        return str(int(self))

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return format(int(self), form)


def _terms_of(number: Any) -> Terms | None:
    if isinstance(number, SymbolicSize):
        return number.terms
    if isinstance(number, (int, np.integer)):
        return _constant(int(number))
    return None


def is_symbolic(numbers: Sequence[Number]) -> bool:
    """Whether some element of ``numbers`` is a SymbolicSize."""
    return any(isinstance(number, SymbolicSize) for number in numbers)


def hint_of(number: Number) -> int:
    """The value that a number has at the hints of its symbols; adds no guard."""
    return number.hint if isinstance(number, SymbolicSize) else int(number)


def symbols_in(number: Number) -> set[int]:
    """The symbols that occur in a size; none for an int."""
    return _symbols_in(number.terms) if isinstance(number, SymbolicSize) else set()


def _only_symbol_in(size: SymbolicSize) -> int:
    (symbol,) = symbols_in(size)
    return symbol


def is_always_at_least(size: Number, lower: int) -> bool:
    """Whether a size is at least ``lower``, by a guard if needed; ``False`` if iterations differ.

    Only for a choice between equivalent computations.
    """
    try:
        return bool(size >= lower)
    except Undecided:
        return False


def is_always(size: Number, value: Number) -> bool:
    """Whether a size has a value, by a guard if needed; ``False`` if iterations differ.

    Only for a choice between equivalent computations.
    """
    try:
        return bool(size == value)
    except Undecided:
        return False


def may_vary_per_iteration(size: Number) -> bool:
    """Whether a size may have different values in two iterations of a loop."""
    return isinstance(size, SymbolicSize) and size.guards.varies_per_iteration(size.terms)


def bounds_of(number: Number) -> tuple[int, int]:
    """The lower and upper bound of a number that the guards imply; adds no guard."""
    if isinstance(number, SymbolicSize):
        return number.guards.bounds(number.terms)
    return number, number


def symbolic_size(size: Number) -> SymbolicSize | None:
    """``size`` if it is a SymbolicSize, ``None`` if it is an int."""
    return size if isinstance(size, SymbolicSize) else None
