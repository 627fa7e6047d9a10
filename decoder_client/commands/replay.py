"""dresd-decoder replay: walks known answers through several drafters, without decoding."""

from __future__ import annotations

import argparse

from decoder_client.commands.evaluation_options import (
    EvaluationError,
    add_options,
    check_outputs,
    chosen_methods,
    opened_resources,
    print_tables,
    set_threads,
    settings_of,
    status_line,
    warned_of_known,
    write_results,
)
from decoder_client.commands.progress_bars import show_what_takes_long
from dresd.argument_types import some_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "--traces", required=True, type=some_path, metavar="FILE", help=".jsonl of prompt_ids and response_ids"
    )
    add_options(parser, methods="plain,dresd", nodes="8,16,32,64")
    parser.add_argument(
        "--cost-curve", type=some_path, metavar="FILE", help="predict speed-ups from a device's measured forward passes"
    )


def run(arguments: argparse.Namespace) -> int:
    """Replays and prints; 0."""
    from decoder_client.cache_folder import cache_folder
    from decoder_client.evaluation.assemble import assemble
    from decoder_client.evaluation.cost_curve import cost_points, pass_seconds, read_cost_curve
    from decoder_client.evaluation.methods import OWN_BUDGET, Method
    from decoder_client.evaluation.replay_run import run_replay
    from decoder_client.evaluation.results import PLAIN, REPLAY
    from decoder_client.evaluation.token_records import read_token_records
    from decoder_client.evaluation.traces import load_traces
    from decoder_client.loop import DraftLimits
    from decoder_client.pass_cost import pass_cost
    from decoder_client.target_model import load_target_model

    check_outputs(arguments)
    methods = chosen_methods(arguments)
    curve = None if arguments.cost_curve is None else read_cost_curve(arguments.cost_curve)
    if curve is not None and all(method.name != PLAIN for method in methods):
        methods.insert(0, Method(PLAIN, OWN_BUDGET))  # costs nothing here, and speed-ups compare with it
    set_threads(arguments.threads)
    show_what_takes_long()
    target = load_target_model(arguments.model)
    records = read_token_records(arguments.traces, vocab_size=target.vocab_size, limit=arguments.limit)
    for record in records:
        if len(record.prompt) + len(record.answer) > target.max_length:
            raise EvaluationError(f"{record.name} of {str(arguments.traces)!r} is longer than the model's window.")
    show = status_line()
    with opened_resources(arguments, target, methods, lambda: curve or pass_cost(target)) as resources:
        known = warned_of_known(records, arguments, resources)
        traces = load_traces(
            records, target, cache_folder(), on_trace=lambda done: show(f"forward passes: {done} of {len(records)}")
        )
        measurements = run_replay(
            traces,
            methods,
            resources,
            max_depth=DraftLimits().max_depth,
            max_new_tokens=max(len(record.answer) for record in records),
            pass_seconds=None if curve is None else pass_seconds(curve),
            on_method=lambda method: show(f"replaying {method.label}"),
        )
        show("")
        other = sum(trace.disagreements for trace in traces)
        tokens = sum(len(record.answer) for record in records)
        foreign = [f"{other} of the traces' {tokens} tokens are not this model's greedy choice."] if other else []
        results = assemble(
            REPLAY,
            target,
            measurements,
            {record.name: record.answer for record in records},
            store=resources.store_info,
            settings=settings_of(arguments),
            cost_curve=[] if curve is None else cost_points(curve),
            notes=[*known, *resources.notes, *foreign],
        )
    write_results(results, arguments)
    print_tables(results)
    return 0
