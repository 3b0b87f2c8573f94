"""Run results.half_precision, where this program is now; the old path goes after one release."""

import runpy

if __name__ == "__main__":
    runpy.run_module("results.half_precision", run_name="__main__", alter_sys=True)
