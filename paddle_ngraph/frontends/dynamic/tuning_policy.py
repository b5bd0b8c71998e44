"""Policy of the autotuner of dynamic mode: what it may cost, and when it decides."""

from __future__ import annotations

from dataclasses import dataclass, field

from paddle_ngraph.utils import measured_choice


@dataclass(frozen=True)
class TuningPolicy:
    """Constants of the autotuner.

    Attributes:
        native_share: Tracing, builds and trials take at most this share of the time that a function
            has run natively, beyond ``FLAGS_ngraph_tuning_ms``.
        resume_seconds: Once that is spent, captured calls go on when this many seconds are
            available: consecutive ones are faster than one after native calls, which leave threads
            and caches cold.
        build_seconds_per_program: Expected seconds until a program has run for the first time.
        build_seconds_per_operator: Expected seconds per operator of a program for inference.
        build_seconds_per_trained_operator: Expected seconds per operator with its gradient.
        max_awaited_build_seconds: Functions that are expected to take longer are compiled in the
            background.
        calls_before_check: Captured calls of a function that is compiled by name, before the first
            native call is timed.
        max_calls_waited_for_layer: A layer in training that is being measured and is not called
            leaves its slot after this many calls of other layers.
        min_profiled_shapes: Calls of a layer are profiled once it was trained with this many
            shapes.
        profiled_calls: The number of calls that are profiled.
        min_inner_time_share: Inner layers are tuned instead of their outermost layer if those with
            fewer shapes take at least this share of its time.
        resting_calls, max_resting_seconds: After a native call that took less than these seconds,
            and that no captured one follows soon, so many calls with equal inputs are made without
            a look at their times, which would cost more than a tenth of them.
        choice: When a decision is made, and measured again: native calls are the incumbent.
    """

    native_share: float = 0.1
    resume_seconds: float = 0.02
    build_seconds_per_program: float = 0.05
    build_seconds_per_operator: float = 0.004
    build_seconds_per_trained_operator: float = 0.012
    max_awaited_build_seconds: float = 1.0
    calls_before_check: int = 32
    max_calls_waited_for_layer: int = 64
    min_profiled_shapes: int = 16
    profiled_calls: int = 16
    min_inner_time_share: float = 0.5
    resting_calls: int = 15
    max_resting_seconds: float = 0.001
    choice: measured_choice.Policy = field(
        default=measured_choice.Policy(
            pairs=4,
            burst=4,
            warmup_calls=1,
            max_slowdown=float("inf"),
            min_gain=1.05,
            max_unmeasured_calls=24,
            first_recheck_calls=500,
        )
    )


# Replaced by tests as a whole.
POLICY = TuningPolicy()
