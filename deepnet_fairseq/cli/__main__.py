"""`python -m deepnet_fairseq.cli` is `deepnet`."""

from . import main

main()
