"""``block.kwargs()`` gives a value of a new program the object of one of a dropped program."""

from typing import Any

import paddle

# The accessor returns references into the memory of the block; pybind11 finds an object by address.


def value() -> Any:
    """The value of a new program, which is dropped."""
    main = paddle.static.Program()
    with paddle.static.program_guard(main):
        type = paddle.static.data("x", [2]).type()
    block = main.global_block()
    block.add_kwarg("k", type)
    return block.kwargs()["k"]


def fault() -> str:
    paddle.enable_static()
    values = [value() for _ in range(1000)]
    shared = len(values) - len(set(map(id, values)))
    return f"{shared} of {len(values)} programs get objects of others" if shared else ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
