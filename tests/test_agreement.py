"""What two ranks agree on, and what one process answers itself."""

from __future__ import annotations

import pytest
import torch

from deepnet_fairseq.distributed import agreement
from deepnet_fairseq.errors import UserError

from .support.ranks import CONTEXT

CPU = torch.device("cpu")


def _refuse():
    raise UserError(f"--flag: refused by rank {torch.distributed.get_rank() if agreement.several() else 0}")


def _answers(rank: int) -> dict:
    found = {
        "first": agreement.is_first(),
        "several": agreement.several(),
        "gathered": agreement.gathered({"rank": rank}),
        "largest": agreement.largest(10 - rank, CPU),
        "answer": agreement.from_first(lambda: ["asked", rank]),
    }
    try:
        agreement.from_first(_refuse)
    except UserError as error:
        found["mistake"] = str(error)
    agreement.meet()
    return found


def _rank(rank: int, store: str, answers) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    answers.put((rank, _answers(rank)))
    torch.distributed.destroy_process_group()


EXPECTED = {"largest": 10, "answer": ["asked", 0], "mistake": "--flag: refused by rank 0"}


def test_two_ranks_have_one_answer(tmp_path):
    answers = CONTEXT.Queue()
    processes = [CONTEXT.Process(target=_rank, args=(rank, str(tmp_path / "store"), answers)) for rank in range(2)]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    everyone = EXPECTED | {"several": True, "gathered": [{"rank": 0}, {"rank": 1}]}
    assert found == {rank: everyone | {"first": rank == 0} for rank in range(2)}


@pytest.mark.parametrize("initialised", [False, True])
def test_a_process_alone_answers_itself(initialised, request):
    if initialised:
        request.getfixturevalue("group")
    assert _answers(0) == EXPECTED | {"several": False, "first": True, "gathered": [{"rank": 0}]}
