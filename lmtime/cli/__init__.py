"""The `lmtime` command: parse, call, print.

`app` has the commands; those of output layers and encoders stand in `layers`, `cutoffs` and
`pareto`. `options` makes options of a configuration's fields, `terminal` prints tables and
progress, `documents` writes JSON.
"""

from lmtime.cli.app import main

__all__ = ["main"]
