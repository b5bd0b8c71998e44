"""Functions and layers by ``paddle.jit.to_static``."""
