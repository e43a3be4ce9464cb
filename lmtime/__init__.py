"""lmtime: where the time of a language model's step goes, why, and what to do instead.

The flow is the layout; a module imports only from those before it:

    errors, config/, plans     what is timed, what a lab measures        standard library
    hardware                   on what: published peaks                  standard library
    records                    rows and their provenance                 standard library
    calibration                what a device was measured to do          standard library
    cost/                      FLOPs, bytes, time from shapes alone      standard library
    accuracy, published        predictions beside measurements           standard library
    inverse                    from a time or a share back to a size     standard library
    partition_table            the search for partitions, many times     standard library
    stats, metrics, lines      medians, intervals; scores; straight fits numpy
    pareto/                    fronts and how sure they are, searches    numpy
    sources, corpora           where text comes from; token streams      numpy
    wordcounts                 counts of a large vocabulary              numpy
    glue, tasks                labelled text and its files               numpy
    softmax/, models/          output layers; the models                 torch
    timing/                    clock, who owns which time; work, traces  torch
    report, study              from samples to rows; measure what lacks  numpy
    compare, trials            output layers side by side; trained       numpy
    perplexity                 how much better one predicts, how sure    numpy
    encoders/                  the study of compressed encoders: its
                               files have places all along the flow      numpy
    publishing/                notebooks, charts, mathematics on pages   sphinx, papermill
    charts, *_charts,
    explorer/, prose           rows to charts, sliders and sentences     altair
    widgets                    a panel for the live kernel               ipywidgets
    cli/                       the `lmtime` command                      typer, rich

Importing `lmtime` imports none of them.
"""
