"""Deferred signals: sections of code in which no Python code from outside runs in this thread.

Handlers run wherever the main thread runs Python. In plain Paddle none runs during a run, since
Paddle's interpreters run no Python; with the engine they do, since the engine calls Python to build
a function. So handlers are deferred until the end of the run, as in plain Paddle. Ctrl-C is not
deferred then: it raises ``KeyboardInterrupt``, which ends the run (``core/paddle/interruption.h``).
It is deferred where programs are created and rewritten: that is short, and a state that Paddle
leaves half-changed may crash later.

An exception that another thread raises in this one (``PyThreadState_SetAsyncExc``) is deferred,
too. So an exception that is raised in a section is an error of the package, of Paddle or of
OpenVINO, and may be treated as a failed build, whatever its type (core/common/deferred_signals.h).
"""

from __future__ import annotations

from paddle_ngraph import _core

# A context manager. Argument ``except_ctrl_c``: Ctrl-C raises ``KeyboardInterrupt`` at once, unless
# the user has another handler. In nested sections, all is deferred to the end of the outermost one.
deferred_signals = _core.DeferredSignals
