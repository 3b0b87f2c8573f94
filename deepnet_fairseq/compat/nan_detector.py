"""fairseq's search for the first number that is not finite."""

from fairseq.nan_detector import NanDetector


def hook_leaves() -> None:
    """Backward hooks on modules that hold no others.

    fairseq hooks every module, and current torch cannot hook the backward pass of an encoder, which returns a
    dictionary of lists: a training that diverges then ends in StopIteration instead of its FloatingPointError.
    """
    NanDetector.add_hooks = _add_hooks


def _add_hooks(detector: NanDetector, module) -> None:
    if detector.forward:
        detector.fhooks.append(module.register_forward_hook(detector.fhook_fn))
    if detector.backward and next(module.children(), None) is None:
        detector.bhooks.append(module.register_full_backward_hook(detector.bhook_fn))
