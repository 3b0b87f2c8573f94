"""Run results.zero_shot, where this program is now; the old path goes next."""

import runpy

runpy.run_module("results.zero_shot", run_name="__main__", alter_sys=True)
