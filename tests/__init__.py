"""Environment of the tests: the smallest subgraph runs in the engine, and no file is stored."""

import os

os.environ["FLAGS_ngraph_min_interval_us"] = "0"  # noqa: SIM112 - Paddle's own spelling
os.environ["FLAGS_ngraph_cache_dir"] = ""  # noqa: SIM112
os.environ["FLAGS_ngraph_background_compile"] = "0"  # noqa: SIM112
