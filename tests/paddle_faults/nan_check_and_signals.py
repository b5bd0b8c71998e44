"""A signal handler that raises ends the process under ``FLAGS_check_nan_inf``."""

import signal
from typing import Any

import paddle
from endings import ending


class Late(Exception):
    """Raised by the handler."""


def _raise(*_: Any) -> None:
    raise Late


def interrupted() -> None:
    signal.signal(signal.SIGVTALRM, _raise)
    paddle.set_flags({"FLAGS_check_nan_inf": True})
    for attempt in range(2000):
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005 + attempt % 50 * 0.00002)
            for _ in range(200):
                paddle.full([2], 1.0)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except Late:
            pass


def fault() -> str:
    return ending(interrupted)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
