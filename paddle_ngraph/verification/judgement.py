"""Judgement whether a result of the engine is right, for verification and for the fuzzer.

Values that agree with Paddle's to rounding are right; integers and bools have to be equal. A
difference beyond that is a fault, unless the program itself is ill-conditioned: a comparison of two
rounded values, a kink, a sum that cancels. Ill-conditioning is measured, only for values that
differ, with Monte Carlo arithmetic: Paddle computes the same in float64, with noise of the size of
a rounding error on the operands and the result of each operator that rounds. The engine is wrong
where its distance from the noiseless float64 result exceeds the noise, and that of plain Paddle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SAMPLES = 24
MAX_SAMPLES = 2 * SAMPLES  # before elements that noise changes much are called wrong
SPREAD = 6.0  # times the spread of the samples


@dataclass(frozen=True)
class Rounding:
    """The rounding of one dtype.

    Attributes:
        rtol, atol: Results that differ less agree to rounding; ``atol`` is scaled by the largest
            element, if that is below 1.
        noise: The largest relative error of the noise for one rounding.
        wide: The noise of half of the samples is larger by this factor, to find ties.
    """

    rtol: float
    atol: float
    noise: float
    wide: float = 1.0


FLOAT32 = Rounding(rtol=1e-5, atol=1e-6, noise=4 * 2.0**-23)
# One unit in the last place: the engine rounds where Paddle does. Noise of this size meets few of
# the ties that the sum of some roundings breaks.
BFLOAT16 = Rounding(rtol=2.0**-7, atol=2.0**-9, noise=2.0**-7, wide=3.0)
# By value of FLAGS_ngraph_weights: errors of single weights, which add up to less in a product.
COMPRESSED = {
    "int8": Rounding(rtol=2.0**-6, atol=2.0**-6, noise=2.0**-7),
    "int4": Rounding(rtol=2.0**-2, atol=2.0**-2, noise=2.0**-4),
}


def differences(native: np.ndarray, engine: np.ndarray, rounding: Rounding = FLOAT32) -> np.ndarray:
    """Where two results of equal shape and dtype differ by more than rounding."""
    if native.dtype.kind != "f":
        return np.asarray(native != engine)
    shape, native, engine = native.shape, native.reshape(-1), engine.reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        size, gap = np.abs(native), np.abs(engine - native)
    largest = float(size.max(initial=0.0))
    if not np.isfinite(largest):
        finite = np.isfinite(size)
        largest = float(size.max(where=finite, initial=0.0)) if finite.any() else 1.0
        size[~finite] = np.nan
    size *= rounding.rtol
    size += rounding.atol * max(min(1.0, largest), 0.1)
    apart = ~(gap <= size)
    if apart.any():  # among them equal infinities, and NaN
        a, b = native[apart], engine[apart]
        apart[apart] = (a != b) & ~(np.isnan(a) & np.isnan(b))
    return apart.reshape(shape)


def is_nearer(exact: np.ndarray, engine: np.ndarray, native: np.ndarray) -> np.ndarray:
    """Where the engine is at least as near to the exact result as plain Paddle is."""
    if exact.dtype.kind != "f":
        return np.zeros(exact.shape, bool)
    with np.errstate(invalid="ignore"):  # NaN is near to nothing
        return np.asarray(np.abs(engine - exact) <= np.abs(native - exact))


class Spread:
    """The effect of rounding errors on elements of a result: their values in runs with noise.

    Args:
        exact: The elements without noise.
    """

    def __init__(self, exact: np.ndarray) -> None:
        self._exact = _in_range(exact)
        is_float = self._exact.dtype.kind == "f"
        # Of floats: the range of the finite values, and whether others were seen.
        self._low = np.full(exact.shape, np.inf if is_float else 0.0)
        self._high = -self._low
        self._up, self._down, self._nan = (np.zeros(exact.shape, bool) for _ in range(3))
        # Of integers: a second value, whether there is a third, and the largest distance.
        self._second = self._exact
        self._has_third = np.zeros(exact.shape, bool)
        self._largest = np.zeros(exact.shape)
        self._add(self._exact)

    def add(self, sample: np.ndarray, width: float = 1.0) -> None:
        """Adds the elements of a run with noise.

        Args:
            sample: The elements.
            width: The size of the noise, of which one is counted: see ``Rounding.wide``.
        """
        sample = _in_range(sample)
        if width != 1 and sample.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                counted = self._exact + (sample - self._exact) / width
            is_finite = np.isfinite(sample) & np.isfinite(self._exact)
            sample = np.where(is_finite, counted, sample)
        self._add(sample)

    def _add(self, sample: np.ndarray) -> None:
        exact = self._exact
        if exact.dtype.kind != "f":
            is_new = (sample != exact) & (sample != self._second)
            is_first = self._second == exact
            self._has_third |= is_new & ~is_first
            self._second = np.where(is_new & is_first, sample, self._second)
            distance = np.abs(sample.astype("float64") - exact)
            self._largest = np.fmax(self._largest, distance)
            return
        finite = np.isfinite(sample)
        self._low = np.fmin(self._low, np.where(finite, sample, np.inf))
        self._high = np.fmax(self._high, np.where(finite, sample, -np.inf))
        self._up |= sample == np.inf
        self._down |= sample == -np.inf
        self._nan |= np.isnan(sample)

    @property
    def width(self) -> np.ndarray:
        """The largest difference of two runs, of floats; NaN where one is not finite."""
        with np.errstate(invalid="ignore"):
            return np.where(self._up | self._down | self._nan, np.nan, self._high - self._low)

    def may_explain(self, engine: np.ndarray, rounding: Rounding, margin: float) -> np.ndarray:
        """Where more samples may explain the engine's elements, if these do not.

        They do not for elements that are steady: within an eighth in all samples, or one integer.

        Args:
            engine: The elements.
            rounding: The rounding of the arithmetic.
            margin: The factor by which the effect of noise may become larger; above 1, more samples
                may explain any integer.
        """
        explained = self.explains(engine, rounding)
        if self._exact.dtype.kind != "f":
            return np.asarray(explained | (self._largest > 0) | (margin > 1))
        with np.errstate(invalid="ignore", over="ignore"):
            is_steady = self.width <= np.abs(self._exact) / 8
            allowed = SPREAD * self.width + rounding.rtol * np.abs(self._exact) + rounding.atol
            is_far = np.abs(engine - self._exact) > margin * allowed
        return np.asarray(explained | ~(is_steady & is_far))

    def explains(self, engine: np.ndarray, rounding: Rounding = FLOAT32) -> np.ndarray:
        """Where rounding errors explain the engine's elements."""
        if self._exact.dtype.kind != "f":
            return self._explains_integers(engine)
        exact, low, high = self._exact, self._low, self._high
        is_exact_finite, has_finite = np.isfinite(exact), low <= high
        with np.errstate(invalid="ignore", over="ignore"):
            engine = engine.astype("float64")
            largest = np.fmax(high - exact, exact - low)
            allowed = SPREAD * largest + rounding.rtol * np.abs(exact) + rounding.atol
            within = np.abs(engine - exact) <= allowed
            # Around a pole: between the finite values and the infinity, which noise may not reach.
            margin = 2 * (high - low) + rounding.rtol * np.fmax(np.abs(low), np.abs(high))
            is_pole = self._up | self._down
            up, down = self._up | (is_pole & (high > 0)), self._down | (is_pole & (low < 0))
            between = (down | (engine >= low - margin)) & (up | (engine <= high + margin))
        near_pole = between & has_finite & (is_pole | ~is_exact_finite)
        return np.select(
            [np.isnan(engine), engine == np.inf, engine == -np.inf],
            [self._nan, up, down],
            (within & is_exact_finite) | near_pole | self._is_indefinite(engine),
        )

    def _is_indefinite(self, engine: np.ndarray) -> np.ndarray:
        """Where noise over noise has no right value, and the engine's is a usual one.

        Those elements were NaN in a sample, as 0 / 0 is, and had zero between others. One of them
        may have what others had: of a normalized row of noise, any element may be the only one.
        """
        low, high = self._low, self._high
        indefinite = self._nan & (low <= 0) & (high >= 0) & (low < high)
        if not indefinite.any():
            return indefinite
        largest = float(np.fmax(-low[indefinite], high[indefinite]).max())
        return indefinite & (np.abs(engine) <= SPREAD * largest)

    def _explains_integers(self, engine: np.ndarray) -> np.ndarray:
        """As :meth:`explains`: the values that were seen; of three or more, a spread as of floats.

        Two values are a tie, and others are wrong.
        """
        distance = np.abs(engine.astype("float64") - self._exact)
        is_seen = (engine == self._exact) | (engine == self._second)
        return np.asarray(is_seen | (self._has_third & (distance <= SPREAD * self._largest)))


def _in_range(values: np.ndarray) -> np.ndarray:
    """Floats as float64, with infinity for what float32 cannot represent."""
    if values.dtype.kind != "f":
        return values
    values = values.astype("float64")
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(values) > np.finfo("float32").max, np.sign(values) * np.inf, values)


# The elements by which the usual errors of a result are estimated.
_SAMPLED_ELEMENTS = 1 << 14
# Classes of elements by size: of an octave each, from the scale times 16 downward.
_CLASSES, _FIRST = 32, 4
# Fewer elements have no usual error.
_MIN_ELEMENTS = 16
# Errors of more roundings than this are not usual.
_MAX_USUAL_ROUNDINGS = 10


class UsualErrors:
    """The errors that nine of ten elements of Paddle's do not exceed, by the size of the elements.

    Errors are relative to the scale of the tensor, its root mean square. A fault of elements of one
    size is not hidden by the errors of larger ones.

    Args:
        by_class: The errors by class.
    """

    def __init__(self, by_class: np.ndarray | None = None) -> None:
        self._by_class = np.zeros(_CLASSES) if by_class is None else by_class

    @staticmethod
    def of(exact: np.ndarray, native: np.ndarray) -> UsualErrors:
        """The errors of a result of Paddle's."""
        if exact.dtype.kind != "f":
            return UsualErrors()
        exact, native = _sampled(exact).astype("float64"), _sampled(native)
        with np.errstate(invalid="ignore"):  # infinities and NaN are left to Spread
            errors = np.abs(native - exact)
        is_finite = np.isfinite(errors)
        exact, errors, scale = exact[is_finite], errors[is_finite], _scale(exact)
        classes = _classes_of(exact, scale)
        usual = np.zeros(_CLASSES)
        for number in np.flatnonzero(np.bincount(classes) >= _MIN_ELEMENTS):
            usual[number] = np.quantile(errors[classes == number], 0.9)
        return UsualErrors(usual / scale)

    def joined(self, other: UsualErrors) -> UsualErrors:
        """The larger of the errors of two runs."""
        return UsualErrors(np.fmax(self._by_class, other._by_class))

    def at(self, result: np.ndarray, where: np.ndarray, rounding: Rounding) -> np.ndarray:
        """The usual error of each chosen element, at most ten roundings of it or of the scale.

        Args:
            result: The result, exact or Paddle's.
            where: The chosen elements.
            rounding: The rounding of the arithmetic.
        """
        chosen = result[where].astype("float64")
        if result.dtype.kind != "f" or not self._by_class.any():
            return np.zeros(chosen.shape)
        scale = scale_of(result)
        with np.errstate(invalid="ignore"):
            most = _MAX_USUAL_ROUNDINGS * rounding.rtol * np.fmax(np.abs(chosen), scale)
        return np.fmin(self._by_class[_classes_of(chosen, scale)] * scale, most)


def _sampled(array: np.ndarray) -> np.ndarray:
    step = max(1, array.size // _SAMPLED_ELEMENTS) | 1  # odd: it meets all columns of a matrix
    return array.reshape(-1)[::step]


def scale_of(result: np.ndarray) -> float:
    """The root mean square of the finite elements of a result, or of a sample of them."""
    return _scale(_sampled(result))


def _scale(sampled: np.ndarray) -> float:
    """The root mean square of the finite elements; 1 if there is none."""
    finite = sampled[np.isfinite(sampled)].astype("float64")
    return float(np.sqrt(np.mean(finite * finite))) or 1.0 if finite.size else 1.0


def _classes_of(values: np.ndarray, scale: float) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        octaves = np.nan_to_num(np.log2(scale / np.abs(values)), posinf=1e3, neginf=-1e3)
    return np.clip(np.floor(octaves) + _FIRST, 0, _CLASSES - 1).astype(np.intp)


def is_as_exact(
    exact: np.ndarray, engine: np.ndarray, native: np.ndarray, usual: np.ndarray
) -> np.ndarray:
    """Where the error of the engine has the size of Paddle's own, there or at most such elements.

    Much cheaper than :class:`Spread`. ``False`` does not mean that the engine is wrong.

    Args:
        exact, engine, native: Elements of the results.
        usual: The usual errors of these elements.
    """
    if exact.dtype.kind != "f":
        return np.zeros(exact.shape, bool)
    with np.errstate(invalid="ignore"):
        ours, theirs = (np.abs(each.astype("float64") - exact) for each in (engine, native))
        return np.asarray(ours <= SPREAD * np.fmax(theirs, usual))
