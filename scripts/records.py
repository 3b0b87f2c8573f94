"""Run results.records, where this program is now; the old path goes next."""

import runpy

runpy.run_module("results.records", run_name="__main__", alter_sys=True)
