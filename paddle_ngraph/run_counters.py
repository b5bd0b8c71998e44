"""The type of ``paddle_ngraph.stats()``, which also machines without the engine have."""

from __future__ import annotations

from typing import TypedDict


class Stats(TypedDict):
    """Counters of runs, conversions and caches of the process.

    Attributes:
        runs: All runs of subgraphs, and runs of whole programs, layers and traces by Paddle: the
            sum of ``engine_runs``, ``native`` and ``raised``.
        engine_runs: Runs of a function by an ``ngraph_engine`` operator.
        native_runs: Runs of such an operator by Paddle instead.
        runs_while_compiling: Those of them that did not wait for a function.
        native: All runs by Paddle, by the name of the reason.
        raised: Runs of an ``ngraph_engine`` operator that raised an exception, by reason.
        functions_reused: Hits of the function cache.
        functions_loaded, functions_built: Its misses, loaded from disk and compiled.
        functions_built_in_background: Those of the latter that no run waited for.
        functions_with_weights: Misses whose functions have weights as constants.
        functions_with_weights_in_place: Those of them that read weights without prepacking in the
            memory of the variables.
        steps_in_place: Optimizer updates, and sums, that wrote to the memory of states.
        optimizer_steps: Optimizer updates of dynamic mode, one per parameter, that ran on all
            threads.
        clipping_loops: Norms of gradients, and multiplications with a scalar, that ran on all
            threads, too.
        gradients_held: Gradients that these read in the memory of a function (pinned gradients).
        kernel_calls, kernel_call_ns: Calls of Paddle's kernels inside functions, and their time in
            nanoseconds, which is native.
        kernel_results_copied: Results of these that were not written to the function's memory:
            64-bit integers, and those whose size depends on data.
        pool_bytes_live, pool_bytes_idle: Bytes of the engine's memory pool at this moment: of
            results, states and buffers that exist, and retained for the next ones.
        rests_shared_out: Runs in which all threads shared the leftover chunks of a batch.
        ops_converted, ops_native: Compute operators of the programs rewritten.
        native_by_type: The latter by operator type.
    """

    runs: int
    engine_runs: int
    native_runs: int
    runs_while_compiling: int
    native: dict[str, int]
    raised: dict[str, int]
    functions_reused: int
    functions_loaded: int
    functions_built: int
    functions_built_in_background: int
    functions_with_weights: int
    functions_with_weights_in_place: int
    steps_in_place: int
    optimizer_steps: int
    clipping_loops: int
    gradients_held: int
    kernel_calls: int
    kernel_call_ns: int
    kernel_results_copied: int
    pool_bytes_live: int
    pool_bytes_idle: int
    rests_shared_out: int
    ops_converted: int
    ops_native: int
    native_by_type: dict[str, int]


def none_counted() -> Stats:
    """Returns the counters of a process in which nothing has run."""
    by_reason = ("native", "raised", "native_by_type")
    return Stats(**{name: {} if name in by_reason else 0 for name in Stats.__annotations__})  # type: ignore[typeddict-item]
