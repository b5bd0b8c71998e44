"""Asks a language model with published weights a question, natively and through the engine.

SmolLM2-135M-Instruct answers token by token in a plain loop of dynamic mode; the only difference is
one line for the engine. Each engine has a process of its own, for the memory of each. Both have to
choose the same tokens, and the demo fails where they do not, or where the engine did not run.

    python demos/chat_demo/chat.py "What is the capital of France?"
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

# Run as a script, only the folder of this file is searched for modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from demos import command_line, running
from demos.chat_demo.model_file import ModelFile, published
from demos.chat_demo.network import Decoder

QUESTION = "What is the capital of France, and why is it famous?"
PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
)
APART = 1e-4
"""How far the logits of the engines may part by rounding, as a share of the largest. They do by
2e-6; thirty layers, which sum in another order, follow one another."""


@dataclass(frozen=True)
class Answer:
    """One engine's answer.

    Attributes:
        tokens: The tokens that it chose, the one that ends the answer included, int64 [count].
        logits: The logits of each, float32 [count, vocabulary].
        seconds: The time of each.
        first_seconds: The time of the first answer, in which functions are compiled.
        megabytes: The largest resident memory of the process.
    """

    tokens: NDArray[np.int64]
    logits: NDArray[np.float32]
    seconds: NDArray[np.float64]
    first_seconds: float
    megabytes: float


def generate(
    network: Decoder, prompt: list[int], most: int, end: int
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yields the likeliest next token and its logits, float32 [vocabulary], up to the end token."""
    tokens, caches = prompt, None
    for _ in range(most):
        with paddle.no_grad():
            logits, caches = network(paddle.to_tensor([tokens], "int64"), caches)
            token = int(logits[0].argmax())
        yield token, logits[0].numpy()
        if token == end:
            return
        tokens = [token]


def answer(engine: str, options: argparse.Namespace) -> Answer:
    """Answers ``--repeat`` times by one engine, and shows the last answer as it is made."""
    file = ModelFile(options.model or published())
    tokenizer, network = file.tokenizer(), file.network()
    prompt = tokenizer.encode(PROMPT.format(question=options.question)).ids
    if len(prompt) + options.tokens > network.shape.longest:
        raise running.DemoError(
            f"the question has {len(prompt)} tokens: with {options.tokens} of an answer they are "
            f"more than the model's {network.shape.longest}"
        )
    if engine == running.NGRAPH:
        network = with_engine(network)
    totals = []
    for repetition in range(options.repeat):
        is_last = repetition == options.repeat - 1
        start = time.perf_counter()
        tokens: list[int] = []
        scores: list[NDArray[np.float32]] = []
        seconds, shown = [start], ""
        for token, logits in generate(network, prompt, options.tokens, file.end_token):
            tokens.append(token)
            scores.append(logits)
            seconds.append(time.perf_counter())
            if is_last:
                text = tokenizer.decode(tokens)
                # A character of several bytes can be of several tokens.
                if not text.endswith("\ufffd"):
                    print(text[len(shown) :], end="", flush=True)
                    shown = text
        totals.append(seconds[-1] - start)
    print(flush=True)
    return Answer(
        np.array(tokens, np.int64), np.array(scores), np.diff(seconds), totals[0], peak_megabytes()
    )


def with_engine(network: Decoder) -> Any:
    """The network, compiled."""
    ngraph = running.load_engine()
    # In a service, functions are compiled in the background, and for a share of the time that the
    # network has run natively. A demo ends before.
    paddle.set_flags({"FLAGS_ngraph_tuning_ms": -1, "FLAGS_ngraph_background_compile": "0"})
    return ngraph.compile(network)


def peak_megabytes() -> float:
    """The largest resident memory of this process so far."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def results_table(answers: dict[str, Answer]) -> str:
    """One column an engine: times and memory, and with two engines the speed-ups."""
    columns = list(answers.values())
    first = [1e3 * float(each.seconds[0]) for each in columns]
    speed = [
        1 / float(np.median(each.seconds[1:] if len(each.seconds) > 1 else each.seconds))
        for each in columns
    ]
    rows = [
        ["", *answers],
        ["tokens", *(str(len(each.tokens)) for each in columns)],
        ["first token (ms)", *(f"{value:.0f}" for value in first)],
        ["tokens/s after it", *(f"{value:.1f}" for value in speed)],
        ["first answer (s)", *(f"{each.first_seconds:.1f}" for each in columns)],
        ["memory (MB)", *(f"{each.megabytes:.0f}" for each in columns)],
    ]
    if len(columns) == 2:
        rows.append(["speed-up, first token", "", f"{first[0] / first[1]:.2f}x"])
        rows.append(["speed-up after it", "", f"{speed[1] / speed[0]:.2f}x"])
    return running.side_by_side(rows)


def check_agreement(native: Answer, ngraph: Answer) -> None:
    """Prints how far the logits part, up to the first token that differs.

    Raises:
        DemoError: Logits, or the two best at a token that differs, are further apart than rounding.
    """
    count = min(len(native.tokens), len(ngraph.tokens))
    differ = np.flatnonzero(native.tokens[:count] != ngraph.tokens[:count])
    same = int(differ[0]) if len(differ) else count
    compared = slice(0, min(same + 1, count))
    ours, theirs = ngraph.logits[compared], native.logits[compared]
    largest = np.abs(theirs).max(axis=1)
    apart = float(np.max(np.abs(ours - theirs).max(axis=1) / largest))
    print(f"largest difference of a logit: {apart:.1e} of the largest")
    # Negated, so that NaN fails, too.
    if not apart <= APART:
        raise running.DemoError(
            f"the logits of the two engines part by {apart:.1e} of the largest, more than rounding "
            "explains: please report it"
        )
    if same == count:
        print(f"the same {count} tokens")
        return
    theirs = native.logits[same]
    margin = float(theirs[native.tokens[same]] - theirs[ngraph.tokens[same]]) / largest[-1]
    if not margin <= 2 * APART:
        raise running.DemoError(f"token {same} differs, which rounding does not explain")
    print(f"the same {same} tokens, then two whose logits are {margin:.1e} of the largest apart")


def by_process(engine: str, options: argparse.Namespace) -> Answer:
    """The answer of one engine, in a process of its own.

    Raises:
        DemoError: The process failed; it has said why.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "answer.npz")
        command = [sys.executable, __file__, options.question, "--engine", engine]
        command += ["--tokens", str(options.tokens), "--repeat", str(options.repeat)]
        command += ["--answer", str(path)]
        command += ["--model", str(options.model)] if options.model else []
        print(f"[{engine}] ", end="", flush=True)
        if subprocess.run(command, check=False).returncode:
            raise running.DemoError(f"no answer by {engine}")
        with np.load(path, allow_pickle=False) as file:
            return Answer(
                file["tokens"],
                file["logits"],
                file["seconds"],
                float(file["first_seconds"]),
                float(file["megabytes"]),
            )


def run(options: argparse.Namespace) -> None:
    """Answers with the engines asked for, prints the answers and how long they took."""
    paddle.disable_static()
    if options.answer:
        with running.engine_must_run(options.engine):
            found = answer(options.engine, options)
        np.savez(options.answer, **vars(found))
        return
    names = command_line.engines(options.engine)
    answers = {engine: by_process(engine, options) for engine in names}
    print(results_table(answers))
    if len(answers) == 2:
        check_agreement(*answers.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("question", nargs="?", default=QUESTION, help="default: %(default)s")
    command_line.add_engine_option(parser, default="both")
    number = command_line.positive
    parser.add_argument("--tokens", type=number, default=64, help="at most (default: %(default)s)")
    parser.add_argument(
        "--repeat",
        type=number,
        default=3,
        help="how often to answer; the last answer is shown and timed (default: %(default)s)",
    )
    parser.add_argument("--model", type=Path, help="a GGUF file of a Llama model, instead")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    return command_line.exit_status(run, parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
