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
SPREAD = 6.0  # times the spread of the samples


@dataclass(frozen=True)
class Rounding:
    """The rounding of one dtype.

    Attributes:
        rtol, atol: Results that differ less agree to rounding; ``atol`` is scaled by the largest
            element, if that is below 1.
        noise: The largest relative error of the noise for one rounding.
    """

    rtol: float
    atol: float
    noise: float


FLOAT32 = Rounding(rtol=1e-5, atol=1e-6, noise=4 * 2.0**-23)
# One unit in the last place: the engine rounds where Paddle does.
BFLOAT16 = Rounding(rtol=2.0**-7, atol=2.0**-9, noise=2.0**-7)


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
    """The effect of rounding errors on a result: its deviations in runs with noise.

    Args:
        exact: The result without noise.
    """

    def __init__(self, exact: np.ndarray) -> None:
        self._exact = exact
        self._largest = np.zeros(exact.shape)
        # Where a run with noise has another integer, or a NaN or infinity that comes and goes: no
        # evidence.
        self._unsteady = np.zeros(exact.shape, bool)

    def add(self, sample: np.ndarray) -> None:
        """Adds the result of a run with noise."""
        if self._exact.dtype.kind != "f":
            self._unsteady |= sample != self._exact
            return
        self._unsteady |= np.isfinite(sample) != np.isfinite(self._exact)
        with np.errstate(invalid="ignore"):
            self._largest = np.fmax(self._largest, np.abs(sample - self._exact))

    def explains(self, engine: np.ndarray, rounding: Rounding = FLOAT32) -> np.ndarray:
        """Where rounding errors explain the engine's result."""
        exact = self._exact
        if exact.dtype.kind != "f":
            return np.asarray(self._unsteady | (engine == exact))
        with np.errstate(invalid="ignore"):
            error = np.abs(engine.astype("float64") - exact)
            allowed = rounding.rtol * np.abs(exact) + rounding.atol
            within = error <= SPREAD * self._largest + allowed
        odd = ~np.isfinite(exact)
        same = np.where(odd, (engine == exact) | (np.isnan(engine) & np.isnan(exact)), within)
        return np.asarray(same | self._unsteady)


# The elements by which the usual error of a result is estimated.
_SAMPLED_ELEMENTS = 1 << 16


def usual_error(exact: np.ndarray, native: np.ndarray) -> float:
    """The error that few elements of a result of Paddle's exceed; 0 if rounding is not its cause.

    Args:
        exact: The exact result, of floats.
        native: The result of Paddle.
    """
    errors, largest = _sampled_errors(exact, native)
    usual = float(np.quantile(errors, 0.99)) if errors.size else 0.0
    return usual if usual <= 1e-3 * largest else 0.0


def median_error(exact: np.ndarray, native: np.ndarray) -> float:
    """The error that half of the elements of a result of Paddle's exceed."""
    if exact.dtype.kind != "f" or not exact.size:
        return 0.0
    return float(np.median(_sampled_errors(exact, native)[0]))


def _sampled_errors(exact: np.ndarray, native: np.ndarray) -> tuple[np.ndarray, float]:
    """The errors of some elements, and the largest of these elements."""
    step = max(1, exact.size // _SAMPLED_ELEMENTS) | 1  # odd: it meets all columns of a matrix
    sampled, theirs = exact.reshape(-1)[::step], native.reshape(-1)[::step]
    with np.errstate(invalid="ignore"):  # infinities and NaN are left to Spread
        errors = np.nan_to_num(np.abs(theirs.astype("float64") - sampled), posinf=0.0)
        return errors, float(np.abs(sampled).max(initial=0.0))


def is_as_exact(
    exact: np.ndarray, engine: np.ndarray, native: np.ndarray, usual: float
) -> np.ndarray:
    """Where the error of the engine has the size of Paddle's own, there or in most of the tensor.

    Much cheaper than :class:`Spread`. ``False`` does not mean that the engine is wrong.

    Args:
        exact, engine, native: Elements of the results.
        usual: :func:`usual_error` of all elements.
    """
    if exact.dtype.kind != "f":
        return np.zeros(exact.shape, bool)
    with np.errstate(invalid="ignore"):
        ours, theirs = (np.abs(each.astype("float64") - exact) for each in (engine, native))
        return np.asarray(ours <= SPREAD * np.fmax(theirs, usual))
