"""Tests of the registration with fairseq, and of the only places where the package changes other libraries."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

from deepnet_fairseq import register
from deepnet_fairseq.plugin import patches

from ..conftest import TRAIN_FLAGS
from ..support.helpers import run_cold
from ..support.lives import TINY

CHANGED = {
    "fairseq.checkpoint_utils.load_checkpoint",
    "fairseq.checkpoint_utils.load_checkpoint_to_cpu",
    "fairseq.checkpoint_utils.load_model_ensemble_and_task",
    "fairseq.checkpoint_utils.load_pretrained_component_from_model",
    "fairseq.checkpoint_utils.save_checkpoint",
    "fairseq.data.data_utils.batch_by_size",
    "fairseq.data.indexed_dataset.make_dataset",
    "fairseq.distributed.utils.call_main",
    "fairseq.distributed_utils.call_main",  # the old name of the same module
    "fairseq.file_io.PathManager.copy",
    "fairseq.options.parse_args_and_arch",
    "fairseq.tasks.setup_task",
    "fairseq.utils.import_user_module",
    "fairseq_cli.interactive.buffered_read",
    "fairseq_cli.train.Trainer",
    "fairseq_cli.train.train",
    "fairseq_cli.train.validate_and_save",
    "hydra._internal.utils.CompactHydraException",
    "torch.utils.data._utils.signal_handling._set_worker_signal_handlers",
}
TORCHS_OWN = {"torch._weights_only_unpickler._marked_safe_globals_set"}  # set by torch.serialization.add_safe_globals
SNAPSHOT = """
    import json, sys, types
    import fairseq_cli.generate, fairseq_cli.hydra_train, fairseq_cli.interactive, fairseq_cli.train
    import hydra._internal.utils, numpy, torch.distributed, torch.utils.data

    LIBRARIES = ("fairseq", "fairseq_cli", "hydra", "omegaconf", "numpy", "torch")

    def attributes():
        found = {}
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in LIBRARIES and isinstance(module, types.ModuleType):
                for key, value in list(vars(module).items()):
                    found[f"{name}.{key}"] = value
                    if isinstance(value, type) and value.__module__ == name:
                        found |= {f"{name}.{key}.{inner}": held for inner, held in vars(value).items()}
        return found

    before = attributes()
    import deepnet_fairseq, deepnet_fairseq.core, deepnet_fairseq.cli
    after = attributes()
    assert all(after[name] is value for name, value in before.items()), "by an import alone"
    deepnet_fairseq.register()
    after = attributes()
    print()
    print(json.dumps([name for name, value in before.items() if after.get(name) is not value]))
"""


def test_the_list_of_patches_is_complete():
    """register() changes the listed attributes of these libraries' loaded modules and classes, and no others."""
    printed = run_cold("python", "-c", dedent(SNAPSHOT)).stdout
    (listed,) = (line for line in printed.splitlines() if line.startswith("["))
    assert set(json.loads(listed)) - TORCHS_OWN == CHANGED


def test_an_import_loads_neither_torch_nor_fairseq():
    code = "import sys, deepnet_fairseq; print({'torch', 'fairseq', 'numpy'} & sys.modules.keys())"
    assert run_cold("python", "-c", code).stdout == "set()\n"


def test_a_second_registration_changes_nothing():
    register()
    before = {place: getattr(*place) for place in patches.PATCHES}
    register()
    assert before == {place: getattr(*place) for place in patches.PATCHES}


IN_PYTHON = """
    import sys
    {begin}
    from fairseq_cli import train
    sys.argv = ["fairseq-train", *{words!r}]
    train.cli_main()
    print(train.Trainer.func.__name__)
"""
STARTS = {  # name -> first lines of a program that trains in its own process
    "--user-dir alone": "",
    "imported before": "import deepnet_fairseq",
    "registered before": "import deepnet_fairseq; deepnet_fairseq.register()",
    "fairseq imported before": "import fairseq.trainer, fairseq_cli.train",
}


@pytest.mark.parametrize("begin", STARTS)
def test_a_training_from_python(begin, data, tmp_path):
    """fairseq's trainer runs from Python with register() called first; otherwise fairseq reports the import."""
    words = [str(data), *TRAIN_FLAGS, *TINY, "--max-update", "1", "--save-dir", str(tmp_path)]
    done = run_cold("python", "-c", dedent(IN_PYTHON).format(begin=STARTS[begin], words=words), check=False)
    if begin == "imported before":
        assert done.returncode and "already been imported" in done.stdout, done.stdout[-2000:]
    else:
        assert done.returncode == 0 and "DeepTrainer\n" in done.stdout, done.stdout[-2000:]
