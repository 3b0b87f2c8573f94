"""How often to save: Young 1974 and Daly 2006, for failures that come at random with a mean time M between them.

    Young  t = sqrt(2 d M)
    Daly   t = sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18 M) - d, for d < 2 M; else M
    time   M exp(r / M) (exp((t + d) / M) - 1) for t seconds of training

Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974. Daly, "A higher order
estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006, which has the time too.

t: seconds of training between two saves; d: seconds a save stops it; r: from a failure to the first update again.
"""

from __future__ import annotations

import math


def young(save: float, mtbf: float) -> float:
    """Seconds between saves, to first order; both arguments in seconds."""
    return math.sqrt(2 * save * mtbf)


def daly(save: float, mtbf: float) -> float:
    """Seconds between saves, to higher order; MTBF where a save takes longer than twice that. Arguments in seconds."""
    if save >= 2 * mtbf:
        return mtbf
    ratio = save / (2 * mtbf)
    return young(save, mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save


def lost(interval: float, save: float, restart: float, mtbf: float) -> float:
    """Share of all time that is no training: saves, work done twice, restarts. 1 where nothing gets done.

    All in seconds: interval t, save d, restart r and the mean time M of the module's formulas.
    """
    try:
        taken = mtbf * math.exp(restart / mtbf) * math.expm1((interval + save) / mtbf)
    except OverflowError:
        return 1.0
    return 1 - interval / taken
