"""Policy: the numbers by which the package decides what to build, when, and how much to keep.

Limits that follow from an algorithm, a data type or a kernel stay in their modules, and so do the
bounds of caches (docs/reference/caches.md) and the policy of packages that are built on the core.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PolicySettings:
    """Policy of the process. Tests change fields of ``SETTINGS``; users change flags.

    Attributes:
        use_ngraph: Whether static programs run through the engine.
        cache_size: Compiled functions in memory, at most.
        cache_mb: Megabytes of weights that the cached functions may hold as constants.
        memory_mb: Megabytes of freed tensors that are retained for the next run.
        cache_dir: The folder of the disk cache; empty without a disk cache.
        trusted_dir: A folder of models, or of functions, that are trusted although another user
            owns them; empty: none.
        cache_disk_mb: Megabytes of the disk cache, at most.
        cache_min_ms: Functions that are built in fewer milliseconds are not stored on disk.
        num_threads: Threads of the engine; 0 for all cores that the process may use.
        precision: ``f32``, ``bf16``, or ``f16`` on GPUs and NPUs.
        weights: How functions of inference hold the weights of matmuls: ``as given``, ``int8``, or
            ``int4`` in groups.
        min_interval_us: Subgraphs that Paddle runs in fewer microseconds run natively.
        background_compile: ``auto``, ``1`` or ``0``: whether Paddle runs subgraphs during builds.
        tuning_ms: Milliseconds that tracing and building may hold up a function of dynamic mode,
            beyond a tenth of its native time; -1: no limit, and functions that are compiled by name
            are not measured.
        strict: Whether a subgraph that the engine cannot run is an error.
        verify: One run of the engine in this many, of each subgraph, is compared with Paddle's
            kernels; 0: none.
        kernel_calls: Whether functions call Paddle's kernels, for operators without a converter.
        use_mkl_packed: Whether recurrent layers of programs run with packed weights.
        mkl_packed_provider: ``auto``, ``mkl`` or ``onednn``: the library of packed matmuls.

        max_training_graphs: Graphs of dynamic layers that train by Paddle's interpreters. For each
            Paddle retains twelve threads and a megabyte, permanently.
        exclusive_retry_seconds: Seconds between attempts to get exclusive access to Paddle. An
            attempt blocks other threads for a twentieth of this time at most.

        static_shapes_before_dynamic: Shapes that get functions of their own, which are faster,
            before dynamic shapes are tried.
        static_batches_before_dynamic: The same for batch sizes, if batches are computed in chunks,
            unlike with a dynamic batch size: on one thread, 4 images by MobileNetV2 take 0.65 times
            as long (Zen 4).
        max_static_batches: Batch sizes that have functions in which all but the batch is dynamic.
        max_unsplit_tries: Builds of such functions for a graph, none of which splits the batch.
        max_dynamic_tries: Attempts at dynamic shapes for a graph: if each function's guards hold
            for few shapes only, the graph would get one function after another.
        max_value_input_elements: Longer integer inputs are data, not indices or sizes: no operator
            is converted on the condition that a build reads their values, and their elements are
            not symbolic.

        background_compile_native_runs: ``auto`` compiles in the background if that takes longer
            than this many runs by Paddle.
        awaited_training_build_seconds: ``auto`` has training wait for builds that are expected to
            be shorter.
        initial_build_us_per_operator: Assumed build time, until a build was measured.
        build_switch_interval_seconds: Switch interval of Python's threads during a build: a run by
            Paddle waits for the GIL several times, and took twice as long with Python's 5 ms.
        interrupt_check_seconds: A run that waits for its function checks for Ctrl-C this often.
        build_log_seconds: A run that has waited this long for its function is logged.

        max_judgement_time_ratio: A verified run is judged in float64 for this multiple of the time
            that Paddle takes to run its subgraph; then the judgement pauses until the next run.

        dispatch_us_per_operator: Dispatch overhead of Executor.
        accessed_elements_per_us: Elements that one thread reads or writes in a microsecond.
        multiplications_per_us: Multiplications per microsecond of one core, at half of its peak.
        min_us_per_legacy_operator: Microseconds, by the estimate, that subgraphs have to take
            Paddle for each operator of an old program that the translation keeps.
        onednn_gain_per_operator: The gain of a subgraph over Paddle's oneDNN per operator, a few
            microseconds: the unit of the next two. Rounded up from
            benchmarks/results/intervals.md.
        onednn_boundary_cost: The cost of the inputs and outputs of a subgraph, in this unit.
        onednn_kernel_loss: The loss of a fallback operator with a kernel of oneDNN, in this unit.
        typical_loop_iterations: Assumed trip count of a loop.
        typical_dimension_size: Assumed size of a dynamic dimension, if the sizes of the feeds are
            unknown; also in the rules about bfloat16.
        rewrite_growth_factor: A program is partitioned again when its feeds have grown by this
            factor.
        small_runs_before_rewrite: Runs after which a program that is too small for the cost model
            is compiled: each run gains about 0.4 ms, and compilation takes 10 to 30 ms.

        min_pinned_gradient_bytes: Pinning smaller gradients gains nothing.
        min_pooled_result_bytes: Smaller results of predictors are as fast in NumPy's memory, which
            the C library caches.
        min_multiplications_per_chunk: Multiplications in a chunk's convolutions: with fewer, a
            request costs more than it gains (LeNet-5, Zen 4). PP-OCR's orientation classifier,
            16 million for an image, takes 1.5 ms for eight images in eight chunks, 1.3 in four or
            two, and 1.4 as a whole (two cores of a Zen 5).
        min_busy_thread_share: The share of the threads that have a chunk to compute, on average.
        min_bfloat16_multiplications: Below this a matmul gains less from bfloat16 than rounding its
            operands costs.
        min_bfloat16_dimension_size: Minimum of rows, columns and the summed dimension. Matmuls
            with a dimension of one to four are part of norms and of positions, and lose no bits.
    """

    # -- flags: FLAGS_NAME or FLAGS_ngraph_NAME --
    use_ngraph: bool = False
    cache_size: int = 256
    cache_mb: int = 1024
    memory_mb: int = 512
    cache_dir: str = ""
    trusted_dir: str = ""
    cache_disk_mb: int = 2048
    cache_min_ms: int = 100
    num_threads: int = 0
    precision: str = "f32"
    weights: str = "as given"
    min_interval_us: int = 60
    background_compile: str = "auto"
    tuning_ms: int = 1000
    strict: bool = False
    verify: int = 0
    kernel_calls: bool = True
    use_mkl_packed: bool = True
    mkl_packed_provider: str = "auto"

    # -- frontends/dynamic/lazy/trace_graph.py: programs of captured layers --
    max_training_graphs: int = 128
    exclusive_retry_seconds: float = 1.0

    # -- conversion/dynamic_shapes.py: functions for several shapes --
    static_shapes_before_dynamic: int = 2
    static_batches_before_dynamic: int = 4
    max_static_batches: int = 8
    max_unsplit_tries: int = 2
    max_dynamic_tries: int = 16
    max_value_input_elements: int = 64

    # -- partitioning/background_compile.py --
    background_compile_native_runs: int = 20
    awaited_training_build_seconds: float = 1.0
    initial_build_us_per_operator: float = 2000.0
    build_switch_interval_seconds: float = 0.0005
    interrupt_check_seconds: float = 0.05
    build_log_seconds: float = 2.0

    # -- verification/checks.py --
    max_judgement_time_ratio: float = 1.5

    # -- partitioning/cost_model.py, and its uses in frontends --
    dispatch_us_per_operator: float = 8.0
    accessed_elements_per_us: float = 2000.0
    multiplications_per_us: float = 30e3
    min_us_per_legacy_operator: float = 900.0
    onednn_gain_per_operator: int = 1
    onednn_boundary_cost: int = 2
    onednn_kernel_loss: int = 16
    typical_loop_iterations: int = 16
    typical_dimension_size: int = 64
    rewrite_growth_factor: int = 4
    small_runs_before_rewrite: int = 64

    # -- gradient_pinning.py, batch_split.py, mixed_precision.py, predictor/switch.py --
    min_pinned_gradient_bytes: int = 128 * 1024
    min_pooled_result_bytes: int = 1 << 20
    min_multiplications_per_chunk: int = 1 << 25
    min_busy_thread_share: float = 0.8
    min_bfloat16_multiplications: int = 1 << 18
    min_bfloat16_dimension_size: int = 16


SETTINGS = PolicySettings()
