"""Rows on a terminal: tables on standard output, progress on standard error.

rich is imported when something is drawn: a command that prints JSON does without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIET_S = 10  # off a terminal, progress is a line at most this often
WIDTH = 120  # of a table in a file or a pipe


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Gives a function that shows what is being done: a live line, or now and then a plain one."""
    console = _console(stderr=True)
    if console.is_terminal:
        with console.status("starting") as status:
            yield status.update
        return
    last = -QUIET_S

    def say(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= QUIET_S:
            last = time.monotonic()
            console.print(text)

    yield say


def print_rows(rows: list[dict]) -> None:
    """Any rows as a plain table."""
    table = _table(*(str(name) for name in rows[0]))
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    _output(table)


def print_profile(doc: dict) -> None:
    """A measured breakdown: one line an owner and phase, the step last."""
    table = _table("owner", "phase", "ms", "share %", "interval", "predicted %", "GFLOP", "MB")
    for row in doc["rows"]:
        table.add_row(
            row["owner"],
            row["phase"],
            f"{row['latency_ms']:.2f}",
            f"{100 * row['share']:.1f}",
            f"{100 * row['share_low']:.1f} to {100 * row['share_high']:.1f}",
            "" if row["predicted_share"] is None else f"{100 * row['predicted_share']:.1f}",
            f"{row['flops'] / 1e9:.2f}" if row["flops"] else "",
            f"{row['bytes'] / 1e6:.1f}" if row["bytes"] else "",
        )
    _output(table)
    _output(f"{doc['rows'][0]['device_name']}, {doc['rows'][0]['n']} pairs of steps.")
    for line in doc["summary"]:
        _output(line)


def print_prediction(doc: dict) -> None:
    """A prediction: the roofline band of each part, and the memory of the step."""
    table = _table("owner", "phase", "ms", "at least", "at most", "share %", "GFLOP", "MB")
    for row in doc["rows"]:
        table.add_row(
            row["owner"],
            row["phase"],
            f"{row['latency_ms']:.4f}",
            f"{row['latency_ms_low']:.4f}",
            f"{row['latency_ms_high']:.4f}",
            f"{100 * row['share']:.1f}",
            f"{row['flops'] / 1e9:.3f}",
            f"{row['bytes'] / 1e6:.2f}",
        )
    _output(table)
    _output(
        f"Predicted for {doc['provenance']['device']} by the roofline, from shapes alone: "
        f"inefficiency is not in it, launches and waiting not in what it takes at least."
    )
    waiting = doc["waiting"]
    times = "once" if waiting["syncs"] == 1 else f"{waiting['syncs']:.0f} times"
    _output(
        f"The host launches {waiting['launches']:,.0f} operators and waits {times}; "
        f"{100 * waiting['host_bound_share']:.0f} % of the step the device waits for it."
    )
    _output(_memory_line(doc["memory"]))


def print_cutoffs(doc: dict) -> None:
    """Partitions of a vocabulary beside the baseline, and what their price is made of."""
    rows = doc["rows"]
    in_ms = rows[0]["predicted_ms"] is not None
    table = _table("", "cutoffs", "widths", *["ms"] * in_ms, "ratio", "MFLOP/token", "rank")
    for row in rows:
        table.add_row(
            _mark(row),
            ",".join(map(str, row["cutoffs"])),
            ",".join(map(str, row["tail_widths"])),
            *[f"{row['predicted_ms']:.3f}" for _ in range(in_ms)],
            f"{row['ratio_to_baseline']:.3f}",
            f"{row['flops_per_token'] / 1e6:.3f}",
            f"{row['mean_rank_per_token']:.0f}",
        )
    _output(table)
    what = "Time of forward and backward pass" if in_ms else "Work of forward and backward pass"
    _output(
        f"{what} of the output layer with {doc['n_tokens']:,} tokens a step, hidden size "
        f"{doc['hidden_size']:,} and {doc['vocab_size']:,} words: predicted by {doc['basis']}. "
        f"Nothing was run."
    )
    _output(
        "The baseline is torch's layer with div_value 4, as torch executes it; ratio is to it. The "
        "others are layers fused-adaptive, whose tails have widths of their own. rank is the width "
        "that a token's word is compared in, on average: a proxy for quality, which only training "
        "shows."
    )


def print_comparison(doc: dict) -> None:
    """Layers side by side, with the intervals of what they take of torch's adaptive softmax."""
    table = _table("", "ms", "of torch's", "of products", "MB", "GFLOP", "kernels", "waits")
    for row in doc["rows"]:
        table.add_row(
            row["layer"],
            f"{row['latency_ms']:.2f}",
            f"{row['ratio_to_torch_adaptive']:.2f} "
            f"({row['ratio_low']:.2f} to {row['ratio_high']:.2f})",
            f"{row['ratio_to_gemm']:.2f}",
            f"{row['peak_bytes'] / 1e6:.0f}",
            f"{row['flops'] / 1e9:.2f}",
            str(row["kernels"]),
            str(row["syncs"]),
        )
    _output(table)
    same = [r["layer"] for r in doc["rows"][1:] if not r["difference_shown"]]
    told = f"No difference from torch's adaptive softmax is shown for {', '.join(same)}. "
    _output(
        f"{doc['n_tokens']:,} tokens, hidden size {doc['hidden_size']:,}, {doc['vocab_size']:,} "
        f"words; forward and backward pass, medians of steps taken in turn. "
        f"{told if same else ''}Products are the bare matrix products of a layer's shapes."
    )


def print_latencies(doc: dict) -> None:
    """Latencies of sub-networks with their intervals, and what the quality gate refused."""
    table = _table("sub-network", "ms", "interval", "a second", "n", "")
    for row in sorted(doc["rows"], key=lambda r: r["latency_ms"]):
        table.add_row(
            row["name"],
            f"{row['latency_ms']:.2f}",
            _interval(row, "latency_ms", 2),
            f"{row['throughput_per_s']:.1f}",
            str(row["n"]),
            row["quality"],
        )
    _output(table)
    if "median_error_held_out" in doc:
        _output(
            f"A predictor is off by {100 * doc['median_error_held_out']:.1f} % in the median of "
            f"{doc['n_held_out']} sub-networks that it was not fitted on."
        )


def print_scores(doc: dict) -> None:
    """Scores of a super-network's widths and depths, and of the network trained alone."""
    table = _table("sub-network", "parameters", doc["rows"][0]["metric"], "interval")
    for row in doc["rows"]:
        score = f"{row['score']:.1f}"
        table.add_row(row["name"], f"{row['parameters']:,}", score, _interval(row, "score", 1))
    _output(table)
    _output(f"The super-network is in {doc['folder']}.")


def print_front(doc: dict) -> None:
    """Sub-networks by latency, those on the front marked with a star, and how sure that is."""
    table = _table("", "sub-network", "ms", "interval", "score", "interval", "on the front in")
    for row in doc["rows"]:
        table.add_row(
            "*" if row["on_front"] else "",
            row["name"],
            f"{row['latency_ms']:.2f}",
            _interval(row, "latency_ms", 2),
            f"{row['score']:.1f}",
            _interval(row, "score", 1),
            f"{100 * row['front_probability']:.0f} %",
        )
    _output(table)
    of = doc["provenance"]
    _output(
        f"{doc['task']} with {doc['network']} on {doc['device']} ({of['device_name']}) in "
        f"{doc['engine']}, {doc['batch_size']} x {doc['seq_len']} tokens. Latencies: "
        f"{of['latencies']}; scores: {of['scores']}. On the front in: of resamples of latencies "
        f"and examples, within the budget."
    )


def print_search(doc: dict) -> None:
    """The front that a search found: predicted and measured, and the score of unseen examples."""
    table = _table("layers|heads|widths", "predicted ms", "measured", "interval", "score", "unseen")
    for row in doc["rows"]:
        table.add_row(
            row["name"],
            f"{row['predicted_ms']:.2f}",
            f"{row['latency_ms']:.2f}",
            _interval(row, "latency_ms", 2),
            f"{row['score']:.1f}",
            f"{row['score_held_out']:.1f}",
        )
    _output(table)
    notes = doc["provenance"]["notes"]
    _output(
        f"{notes['n_scored']} of {int(notes['space_size']):,} sub-networks were scored, each "
        f"once. Score: of the half of the development set that they were chosen by; unseen: of the "
        f"other half."
    )


def _interval(row: dict, name: str, digits: int) -> str:
    return f"{row[f'{name}_low']:.{digits}f} to {row[f'{name}_high']:.{digits}f}"


def _mark(row: dict) -> str:
    """What a row is: the baseline, or the floor that it keeps; * is cheapest, + on the front."""
    if row["rank_floor"] is None:
        return "baseline"
    marks = ("*" if row["is_cheapest"] else "") + ("+" if row.get("on_front") else "")
    return f"floor {row['rank_floor']:g} {marks}".rstrip()


def _memory_line(held: dict) -> str:
    """Megabytes of the step at its peak, by what they hold."""
    megabytes = {k: "not known" if v is None else f"{v / 1e6:,.1f} MB" for k, v in held.items()}
    total = megabytes.pop("total")
    return f"Memory at the peak: {total} ({', '.join(f'{k} {v}' for k, v in megabytes.items())})."


def _table(*columns: str):
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < 2 else "right", overflow="fold", min_width=5)
    return table


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_text(v) for v in value)
    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(v)}" for k, v in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _console(stderr: bool = False):
    from rich.console import Console

    console = Console(stderr=stderr, soft_wrap=True, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console


def _output(renderable: object) -> None:
    _console().print(renderable)
