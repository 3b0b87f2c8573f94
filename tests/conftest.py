"""Settings of all tests, and two fixtures that many of them use: binarised data and a process group."""

from __future__ import annotations

import gc
import logging
import os
import random
import threading

import pytest
import torch
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from tqdm import tqdm

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.threads import torch_threads
from deepnet_fairseq.user_dir import import_user_dir

from .support.corpora import make_data
from .support.helpers import USER_DIR

# Flags of fairseq-train for a short training of a translator on the fixture `data`, without those of its model. Every
# update is logged as JSON, and only the last checkpoint is written.
TRAIN_FLAGS = (
    "--user-dir", USER_DIR, "--cpu", "--optimizer", "adam", "--lr", "2e-3", "--lr-scheduler", "inverse_sqrt",
    "--warmup-updates", "10", "--warmup-init-lr", "1e-7", "--criterion", "label_smoothed_cross_entropy",
    "--label-smoothing", "0.1", "--max-tokens", "600", "--num-workers", "0", "--log-format", "json",
    "--log-interval", "1", "--share-all-embeddings", "--no-epoch-checkpoints", "--disable-validation",
)  # fmt: skip
NARROW = 64  # features of the widest of the tests' usual models; it decides the number of threads
SLOWEST_FILES = (
    "test_fairseq_programs",
    "test_core",
    "test_user_dir_methods",
    "test_thousand_layers",
    "test_equal_processes",
)

skipped_for_a_library: list[str] = []  # node ids of tests that were skipped because a library is missing


def pytest_addoption(parser) -> None:
    parser.addoption("--methods-from", metavar="FOLDER", help="test the methods in FOLDER as those of the package")
    parser.addoption("--order", type=int, metavar="SEED", help="run files, and tests within a file, in random order")


def pytest_configure(config) -> None:
    """Prepare this process for forks, and register the methods of --methods-from.

    This comes before collection, because tests are parametrised by the registry of methods.
    """
    # Torch computes narrow models by a single thread: that is fastest, and a process with several cannot be forked. The
    # programs that tests start inherit the variable.
    os.environ.setdefault("OMP_NUM_THREADS", str(torch_threads.use(NARROW)))

    # By default forks share tqdm's lock with this process, and one that is killed while it holds the lock would block
    # the tests. So the lock becomes one of this process alone, and tqdm's monitor thread, which could hold it at the
    # moment of a fork, is not started.
    tqdm.set_lock(threading.RLock())
    tqdm.monitor_interval = 0

    folder = config.getoption("--methods-from")
    if folder:
        try:
            import_user_dir(folder)
        except UserError as error:
            raise pytest.UsageError(str(error).replace("--user-dir", "--methods-from")) from error


@pytest.fixture(autouse=True, scope="session")
def every_user_error_is_one_line_with_a_subject():
    """Watch every UserError made in this process, and fail at the end if one had several lines or no subject."""
    wrong = []
    original = UserError.__init__

    def watched(self, *parts) -> None:
        original(self, *parts)
        if not self.subject.strip() or "\n" in str(self):
            wrong.append(str(self))

    UserError.__init__ = watched
    yield
    UserError.__init__ = original
    assert wrong == []


def pytest_runtest_logreport(report) -> None:
    """Record a test that pytest.importorskip has skipped."""
    if report.skipped and "could not import" in str(report.longrepr):
        skipped_for_a_library.append(report.nodeid)


def pytest_sessionfinish(session) -> None:
    """Fail a run with ALL_LIBRARIES=1, such as CI's, if a library was missing; pytest alone would only skip."""
    if skipped_for_a_library and os.environ.get("ALL_LIBRARIES"):
        print(f"\nskipped, for a library is missing: {', '.join(skipped_for_a_library)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_modifyitems(config, items) -> None:
    """Put the slowest files first, so that no worker starts one of them last; take the timeout off slow tests.

    With --order SEED, files come in a random order, and so do the tests of a file. All workers draw the same order.
    """
    items.sort(key=lambda item: item.path.stem not in SLOWEST_FILES)
    seed = config.getoption("--order")
    if seed is not None:
        generator = random.Random(seed)
        files = sorted({item.path for item in items})
        place_of_file = {path: generator.random() for path in files}
        generator.shuffle(items)
        items.sort(key=lambda item: place_of_file[item.path])

    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(0))


def pytest_collection_finish() -> None:
    """Freeze the objects that exist now, libraries and the tests themselves: the garbage collector skips them.

    They are over half a million. Each full collection, of which benchmarks and graphs ask for many, would visit all of
    them, and each forked program would copy their memory.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def frozen_objects() -> None:
    """Freeze the objects again if tests of an earlier file have called gc.unfreeze."""
    if gc.get_freeze_count() == 0:
        pytest_collection_finish()


@pytest.fixture(autouse=True)
def default_levels_of_loggers():
    """Give loggers their default levels before each test: programs that run in this process change them."""
    for name in ("fairseq", "deepnet_fairseq", "train_inner"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    level_of_root = logging.root.level
    yield
    logging.root.setLevel(level_of_root)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Provide a folder of binarised sentence pairs of the generated languages qaa and qab; see make_data."""
    return make_data(tmp_path_factory.mktemp("corpus"), {"train": 400, "valid": 20, "test": 20})


@pytest.fixture
def group(tmp_path):
    """Provide torch.distributed's default process group, with this process as its only member."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()
    _clear_sharding_prop_cache()  # the cache would keep the group alive, whose destruction hangs in a fork
