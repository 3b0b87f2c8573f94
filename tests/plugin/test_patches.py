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

# the attributes of other libraries that register() replaces
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
# A program that prints, as JSON in the last line, which attributes of the modules of other libraries, and of classes in
# them, are other objects after the import and after register() than before.
PRINT_CHANGES = """
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
                        for inner, of_class in vars(value).items():
                            found[f"{name}.{key}.{inner}"] = of_class
        return found

    def changed_since(before):
        after = attributes()
        return [name for name, value in before.items() if after.get(name) is not value]

    before = attributes()
    import deepnet_fairseq, deepnet_fairseq.core, deepnet_fairseq.cli
    by_import = changed_since(before)
    deepnet_fairseq.register()
    print()
    print(json.dumps({"import": by_import, "registration": changed_since(before)}))
"""


@pytest.fixture(scope="module")
def changed_attributes():
    """Provide the names of other libraries' attributes that have changed, {"import": [..], "registration": [..]}."""
    printed = run_cold("python", "-c", dedent(PRINT_CHANGES)).stdout
    [changes] = [line for line in printed.splitlines() if line.startswith('{"import"')]
    return json.loads(changes)


def test_an_import_changes_no_other_library(changed_attributes):
    assert changed_attributes["import"] == []


def test_the_list_of_patches_is_complete(changed_attributes):
    """register() changes the listed attributes of these libraries' loaded modules and classes, and no others."""
    assert set(changed_attributes["registration"]) - TORCHS_OWN == CHANGED


def test_an_import_loads_neither_torch_nor_fairseq():
    code = "import sys, deepnet_fairseq; print({'torch', 'fairseq', 'numpy'} & sys.modules.keys())"

    assert run_cold("python", "-c", code).stdout == "set()\n"


def patched_attributes() -> dict:
    """Return the present value of each attribute that the package replaces, by (owner, name)."""
    return {place: getattr(*place) for place in patches.PATCHES}


def test_a_second_registration_changes_nothing():
    register()
    before = patched_attributes()

    register()

    assert before
    assert patched_attributes() == before


# A program that trains, and then prints the class that fairseq-train's factory `Trainer`, a partial, makes.
TRAIN_IN_PYTHON = """
    import sys
    {start}
    from fairseq_cli import train
    sys.argv = ["fairseq-train", *{words!r}]
    train.cli_main()
    print(train.Trainer.func.__name__)
"""


def train_from_python(start, data, folder):
    """Make one update, saved in `folder`, in a Python program that begins with the line `start`; return what it did."""
    words = [str(data), *TRAIN_FLAGS, *TINY, "--max-update", "1", "--save-dir", str(folder)]
    program = dedent(TRAIN_IN_PYTHON).format(start=start, words=words)
    return run_cold("python", "-c", program, check=False)


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("", id="--user-dir alone", marks=pytest.mark.smoke),
        pytest.param(
            "import deepnet_fairseq; deepnet_fairseq.register()", id="registered before", marks=pytest.mark.smoke
        ),
        pytest.param(
            "import fairseq.trainer, fairseq_cli.train", id="fairseq imported before", marks=pytest.mark.smoke
        ),
    ],
)
def test_a_training_from_python_has_the_packages_trainer(start, data, tmp_path):
    done = train_from_python(start, data, tmp_path)

    assert done.returncode == 0, done.stdout[-2000:]
    assert "DeepTrainer\n" in done.stdout


def test_fairseq_reports_an_import_without_registration(data, tmp_path):
    """fairseq logs that it does not import --user-dir again; then it does not know the package's architectures."""
    done = train_from_python("import deepnet_fairseq", data, tmp_path)

    assert done.returncode != 0
    assert "already been imported" in done.stdout, done.stdout[-2000:]  # fairseq's words, of --user-dir
