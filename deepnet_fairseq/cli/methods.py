"""The command that lists the methods."""

from __future__ import annotations

import json


def list_methods(args) -> None:
    """every method: equation, paper, extra parameters, last LayerNorm, does it fold into a plain Transformer"""
    from ..method_table import HEADER, as_cells, facts, markdown
    from ..methods import METHODS, get_method
    from ..text_table import render

    if args.flags:
        for name in args.flags.split(","):
            print(*("--method", name, *get_method(name).train_flags))
        return
    if args.names or args.norm:
        print(*(name for name in sorted(METHODS) if args.norm in (None, get_method(name).norm)))
        return
    rows = [facts(name) for name in sorted(METHODS)]
    if args.json:
        print(json.dumps(rows, indent=1))
    elif args.markdown:
        print(markdown(rows))
    else:
        print(render([HEADER, *map(as_cells, rows)]))
        print("\nextra parameters: beside post_ln, 6L-6L of width 512; options: fairseq-train --help, docs/methods.md")


def add(command) -> None:
    """Registers `deepnet methods` and its flags; command: as parser() gives it."""
    sub = command("methods", list_methods)
    sub.add_argument("--json", action="store_true")
    sub.add_argument("--markdown", action="store_true", help="the table of docs/methods.md")
    sub.add_argument("--flags", metavar="METHODS", help="only print what trains each of METHODS, for scripts")
    sub.add_argument("--names", action="store_true", help="only print their names")
    sub.add_argument("--norm", choices=("post", "pre", "none"), help="only those whose LayerNorm is there")
