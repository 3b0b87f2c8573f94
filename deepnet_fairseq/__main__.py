"""python -m deepnet_fairseq: the `deepnet` command, where its folder of programs is not on the PATH."""

from .cli import main

main()
