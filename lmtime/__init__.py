"""lmtime: where the time of a language model's step goes, why, and what to do instead.

The flow is the layout; a module imports only from those before it:

    errors, config, hardware   what is timed, on what                     standard library
    records                    rows and their provenance                  standard library
    cost/                      FLOPs, bytes, time from shapes alone       standard library
    stats                      medians, intervals, differences            numpy
    corpora                    token streams and word counts              numpy
    softmax/, models/          output layers; the models                  torch
    timing/                    clock, timer, who owns which time          torch
    study                      from a configuration to records
    charts                     table in, chart out                        altair
    publishing/                notebooks, charts and mathematics on pages
    cli                        the `lmtime` command

Importing `lmtime` imports none of them.
"""
