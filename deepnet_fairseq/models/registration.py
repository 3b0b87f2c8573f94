"""Register this package with fairseq, which imports the files of `USER_DIR/models` after `USER_DIR` itself."""

from .. import register

register()
