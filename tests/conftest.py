"""Settings of all tests, and the binarised data that most trainings in them read."""

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

TRAIN_FLAGS = (
    "--user-dir", USER_DIR, "--cpu", "--optimizer", "adam", "--lr", "2e-3", "--lr-scheduler", "inverse_sqrt",
    "--warmup-updates", "10", "--warmup-init-lr", "1e-7", "--criterion", "label_smoothed_cross_entropy",
    "--label-smoothing", "0.1", "--max-tokens", "600", "--num-workers", "0", "--log-format", "json",
    "--log-interval", "1", "--share-all-embeddings", "--no-epoch-checkpoints", "--disable-validation",
)  # fmt: skip
NARROW = 64  # width of most models here
LONGEST = (
    "test_fairseq_programs",
    "test_core",
    "test_user_dir_methods",
    "test_thousand_layers",
    "test_equal_processes",
)


def pytest_addoption(parser) -> None:
    parser.addoption("--methods-from", metavar="FOLDER", help="test the methods in FOLDER as those of the package")
    parser.addoption("--order", type=int, metavar="SEED", help="run files, and tests within a file, in random order")


def pytest_configure(config) -> None:
    """Register the methods of --methods-from before collection: the methods are parameters of tests.

    Tests compute with as many threads as suit their narrow models, and so do the programs that they start: a process
    with several cannot be forked.

    tqdm's lock becomes this process's own. Forks of a test share tqdm's default lock: a fork that is killed while it
    holds the lock would block the test.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(torch_threads.use(NARROW)))
    tqdm.set_lock(threading.RLock())
    tqdm.monitor_interval = 0  # tqdm's monitor thread could hold the lock at a fork
    if config.getoption("--methods-from"):
        try:
            import_user_dir(config.getoption("--methods-from"))
        except UserError as error:
            raise pytest.UsageError(str(error).replace("--user-dir", "--methods-from")) from error


@pytest.fixture(autouse=True, scope="session")
def lines_of_user_errors():
    """Check every UserError that is made in this process: it has a subject, and is one line."""
    wrong = []
    original = UserError.__init__

    def checked(self, *parts) -> None:
        original(self, *parts)
        if not self.subject.strip() or "\n" in str(self):
            wrong.append(str(self))

    UserError.__init__ = checked
    yield
    UserError.__init__ = original
    assert not wrong, wrong


missing: list[str] = []  # node ids of tests that were skipped because a library is missing


def pytest_runtest_logreport(report) -> None:
    """Record the tests that were skipped because a library is missing."""
    if report.skipped and "could not import" in str(report.longrepr):
        missing.append(report.nodeid)


def pytest_sessionfinish(session) -> None:
    """Fail a run with ALL_LIBRARIES=1, such as CI's, if a library was missing; pytest alone would only skip."""
    if missing and os.environ.get("ALL_LIBRARIES"):
        print(f"\nskipped, for a library is missing: {', '.join(missing)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_modifyitems(config, items) -> None:
    """Put the slowest test files first, so that none of them starts last on one worker; slow tests get no timeout.

    With --order SEED, files come in a random order, and so do the tests of a file. All workers draw the same order.
    """
    items.sort(key=lambda item: item.path.stem not in LONGEST)
    seed = config.getoption("--order")
    if seed is not None:
        generator = random.Random(seed)
        place_of_file = {path: generator.random() for path in sorted({item.path for item in items})}
        generator.shuffle(items)
        items.sort(key=lambda item: place_of_file[item.path])

    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(0))


def pytest_collection_finish() -> None:
    """Take what exists now out of the garbage collector: libraries and the tests themselves, over a million objects.

    Each full collection, of which benchmarks and graphs ask for many, would visit all of them, and each forked program
    would copy their memory.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Provide a folder of binarised qaa-qab data, with the plain text in text/ beside it."""
    return make_data(tmp_path_factory.mktemp("corpus"), {"train": 400, "valid": 20, "test": 20})


@pytest.fixture(autouse=True, scope="module")
def frozen_objects() -> None:
    """Take objects out of the garbage collector again if tests of an earlier file have put them back."""
    if gc.get_freeze_count() == 0:
        pytest_collection_finish()


@pytest.fixture(autouse=True)
def levels_of_loggers():
    """Reset the levels of loggers before each test, because programs that run in this process change them."""
    for name in ("fairseq", "deepnet_fairseq", "train_inner"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    before = logging.root.level
    yield
    logging.root.setLevel(before)


@pytest.fixture
def group(tmp_path):
    """Provide a process group of a single process."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()
    _clear_sharding_prop_cache()  # it would keep the group alive, whose destruction hangs in a fork of this process
