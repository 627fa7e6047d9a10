"""dresd-decoder bench: decodes the prompts of a file with several drafters in turn and compares them."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from decoder_client.commands.evaluation_options import (
    EvaluationError,
    add_options,
    check_outputs,
    chosen_methods,
    opened_resources,
    print_tables,
    set_threads,
    settings_of,
    warned_of_known,
    write_results,
)
from decoder_client.commands.progress_bars import show_what_takes_long
from dresd.argument_types import at_least, some_path

if TYPE_CHECKING:
    from decoder_client.evaluation.measurement import Measurement


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "--prompts", required=True, type=some_path, metavar="FILE", help=".jsonl of prompt, messages or prompt_ids"
    )
    add_options(parser, methods="plain,dresd-auto", nodes="32")
    parser.add_argument("--max-new-tokens", type=at_least(int, 1), default=128, metavar="N", help="default: 128")
    parser.add_argument("--repeats", type=at_least(int, 1), default=1, metavar="N", help="of the whole set; default: 1")
    parser.add_argument(
        "--seed",
        type=at_least(int, 0),
        default=0,
        metavar="N",
        help="of the order in which methods take turns; default: 0",
    )
    parser.add_argument("--no-chat", action="store_true", help="leave texts out of the model's chat template")


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints; 1 if an output differs from plain decoding by more than float32 rounding explains."""
    from decoder_client.evaluation.assemble import assemble
    from decoder_client.evaluation.bench import run_bench
    from decoder_client.evaluation.cost_curve import cost_points
    from decoder_client.evaluation.decoding import new_decode
    from decoder_client.evaluation.logit_gap import logit_gap
    from decoder_client.evaluation.prompts import read_prompts
    from decoder_client.evaluation.results import BENCH
    from decoder_client.evaluation.tables import prompt_header, prompt_lines
    from decoder_client.evaluation.token_records import TokenRecord
    from decoder_client.pass_cost import pass_cost
    from decoder_client.target_model import load_target_model

    check_outputs(arguments)
    methods = chosen_methods(arguments)
    set_threads(arguments.threads)
    show_what_takes_long()
    target = load_target_model(arguments.model)
    chat = not arguments.no_chat and bool(target.tokenizer is not None and target.tokenizer.chat_template)
    prompts = read_prompts(arguments.prompts, target, chat=chat, limit=arguments.limit)
    with opened_resources(arguments, target, methods, lambda: pass_cost(target)) as resources:

        def show(measured: list[Measurement]) -> None:
            print("\n".join(prompt_lines(measured)), flush=True)

        print(prompt_header())
        measurements = run_bench(
            prompts,
            methods,
            partial(new_decode, target, resources, arguments.max_new_tokens),
            partial(logit_gap, target),
            repeats=arguments.repeats,
            seed=arguments.seed,
            on_prompt=show,
        )
        answers = {one.answer.prompt: one.answer.tokens or () for one in measurements}
        records = [TokenRecord(prompt.name, prompt.tokens, answers[prompt.name]) for prompt in prompts]
        curve = resources.measured_cost_curve
        results = assemble(
            BENCH,
            target,
            measurements,
            {},
            store=resources.store_info,
            settings=settings_of(arguments),
            cost_curve=[] if curve is None else cost_points(curve),
            notes=[*warned_of_known(records, arguments, resources), *resources.notes],
        )
    # Before the table, so that a terminal that cannot show it costs no measurement.
    write_results(results, arguments)
    print_tables(results)
    differing = [one for one in measurements if one.answer.difference is not None]
    wrong = [one for one in differing if one.answer.difference and not one.answer.difference.is_near_tie]
    if wrong:
        raise EvaluationError(
            f"{len(wrong)} outputs differ from plain decoding by more than float32 rounding explains, the first one "
            f"for {wrong[0].answer.prompt} with {wrong[0].method.label}. This must not happen: please report it."
        )
    return 0
