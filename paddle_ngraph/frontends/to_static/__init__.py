"""Frontend of functions and layers that ``paddle.jit.to_static`` compiles."""
