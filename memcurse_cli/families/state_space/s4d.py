"""Diagonal state spaces: DSS with its GSS form, S4D and its port to Flax, and S5."""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace

from memcurse_cli.families.family import Assumption, Family, Layer, Layout
from memcurse_cli.families.reading import IMAGINARY, REAL, require_eigenvalues
from memcurse_cli.families.recurrence import Complexes, ProjectionGroup, Recurrence
from memcurse_cli.families.state_space.discretization import (
    LARGEST_REAL_PART,
    METHODS,
    OF_THE_KERNEL,
    S4D_2_DSS,
    S4D_4,
    S4D_MINIMAL,
    S4D_VERSIONS,
    SMALLEST,
    STEP_RESCALE,
    ZERO_ORDER_HOLD,
    DiscreteModes,
    Modes,
    Part,
    Step,
    apply_transform,
    discretise,
    mapped,
    read_diagonal,
    read_kernel,
    read_mapped,
    step_factor,
)

KERNEL_LENGTH = Assumption(
    key="kernel-length",
    default="inf",
    meaning="the length L of DSS's softmax, which divides each mode's gain by e^(Λ Δ L) - 1;"
    " inf leaves that out, as for modes that decay within the sequence",
)
EXPONENTIAL_FREQUENCY = Assumption(
    key="imag-exp",
    default="true",
    choices=("true", "false"),
    meaning="whether GSS takes Im Λ as the exponential of Lambda_imag",
)

VERSION = Assumption(
    key="dss-version",
    default="softmax",
    choices=("softmax", "clip", "clip-no-scale", "exp", "exp-no-scale"),
    meaning="DSS's kernel (version): softmax where Lambda is stored, exp where its logarithm is",
)

_CLIPPED_REAL_PART = 1e-4  # where DSS's clip versions hold Re Λ: above zero


# Of torch with Λ's logarithm or Λ, of Flax, and of GSS.
_FORMS: tuple[tuple[str, ...], ...] = (
    ("Lambda_log_neg_re", "Lambda_log_im", "log_dt", "W"),
    ("Lambda_log_neg_re", "Lambda_im", "log_dt", "W"),
    ("Lambda_re", "Lambda_im", "log_step", "W"),
    ("Lambda", "log_dt", "W"),
    ("Lambda_real", "Lambda_imag", "C_real", "C_imag", "param_D"),
)


class DSS(Family):
    """``λ = e^z``, ``z = Δ Λ``, one Λ for all channels; ``y = Re[W h]`` without a B.

    `DSSKernel` of ag1988/dss (src/models/sequence/ss/standalone/dss.py) and `DSSLayer` of
    srush/annotated-s4 (s4/dss.py), where every channel has a Λ of its own. Where log_dt is (H, 2),
    Re Λ and Im Λ have a step size each. Version exp: ``γ = (e^z - 1)/Λ``. Softmax:
    ``γ = (e^z - 1)/(Λ (e^{zL} - 1))``, also where Re Λ > 0; the 1e-7 beside the reciprocals is
    left out. `DSS` of gated-state-spaces-pytorch has Δ = 1.
    """

    name = "dss"
    title = "DSS (diagonal state space; GSS)"
    recognised_by = (
        "Lambda or Lambda_log_neg_re beside log_dt and W; Lambda_re, Lambda_im, log_step and W;"
        " Lambda_real, Lambda_imag and param_D"
    )
    equation = "λ = exp(Δ Λ), Λ as stored or -e^Lambda_log_neg_re + i Lambda_im, Δ = exp(log_dt)"
    source = "ag1988/dss, annotated-s4, gated-state-spaces-pytorch; Gupta et al., arXiv 2203.14343"
    assumptions = (VERSION, KERNEL_LENGTH, EXPONENTIAL_FREQUENCY)

    layouts = tuple(map(Layout, _FORMS))

    def _recurrence(self, layer: Layer) -> Recurrence:
        names = layer.names
        form = next(form for form in _FORMS if names.keys() == {*form})
        version = "exp"
        if "param_D" not in names:
            default = "exp" if "Lambda_log_neg_re" in names else "softmax"
            version = layer.choose(VERSION, default=default, silent="Lambda_re" in names)
        if "Lambda_re" in names:
            diagonal, step = read_mapped(layer, "Lambda_re", "Lambda_im")
            modes = step.modes(diagonal)
        else:
            modes = _read_shared(layer, form[:2], clipped=version.startswith("clip"))
        discrete = _discrete(layer, modes.z, "dss" if version == "softmax" else ZERO_ORDER_HOLD)
        if version.endswith("no-scale"):  # γ = 1, whatever moves the modes
            still = np.zeros(modes.z.shape, dtype=np.complex128)
            discrete = replace(discrete, log_gain=still, log_gain_slope=still)
            parts = [replace(part, log_step_slope=0.0) for part in modes.parts]
            modes = modes._replace(log_step=0.0, parts=parts)
        readout, direct, along = _read_readout(layer, modes.z.shape)
        tensors = [names[role] for role in form if role != "param_D"]
        return modes.kernel(layer, discrete, readout, direct, along, tensors=tensors)


def _read_shared(layer: Layer, roles: tuple[str, ...], *, clipped: bool) -> Modes:
    """Λ (N) of all channels; ``z = Δ_re Re Λ + i Δ_im Im Λ`` of log_dt (H, 2), Λ itself in GSS."""
    if "Lambda" in layer.names:
        largest = _CLIPPED_REAL_PART if clipped else math.inf
        names = f"Lambda[{REAL}]", f"Lambda[{IMAGINARY}]"
        diagonal = read_diagonal(layer, ("Lambda",) * 2, (None,), largest=largest, names=names)
    else:
        real, imag = roles
        exponential = imag == "Lambda_log_im"
        if imag == "Lambda_imag":
            exponential = layer.choose(EXPONENTIAL_FREQUENCY) == "true"
        transforms = ("exp", "exp" if exponential else "none")
        diagonal = read_diagonal(layer, (real, imag), (None,), transforms, signs=(-1, 1j))
    rate = diagonal.z
    if "C_real" in layer.names:
        layer.require("C_real", (None, rate.size))
        channels = layer.shape("C_real")[0]
        require_eigenvalues(channels * rate.size, layer.names["C_real"])
        return diagonal._replace(z=np.broadcast_to(rate, (channels, rate.size)))
    one_axis = len(layer.shape("log_dt")) == 1
    stored = layer.real("log_dt", (None,) if one_axis else (None, 2))
    require_eigenvalues(len(stored) * rate.size, layer.names["log_dt"])
    stored = stored.reshape(len(stored), -1)
    step = apply_transform(stored, "exp")
    if stored.shape[1] == 1:
        return Step("log_dt", step, stored).modes(diagonal)
    real_step, imag_step = step.value[:, :1], step.value[:, 1:]
    z = _away_from_zero(real_step * rate.real + 1j * (imag_step * rate.imag))
    rate = _away_from_zero(rate)
    untied, channel = [], np.arange(len(stored))[:, None]
    for part in diagonal.parts:
        slope = part.z_slope
        z_slope = real_step * slope.real + 1j * (imag_step * slope.imag)
        untied.append(replace(part, z_slope=z_slope, log_step_slope=z_slope / z - slope / rate))
    for column, (name, share) in enumerate(((REAL, z.real), (IMAGINARY, 1j * z.imag))):
        one = stored[:, column].copy()
        untied.append(Part("log_dt", one, channel, share, share / z, name=f"log_dt[{name}]"))
    return Modes(z, untied, diagonal.stable, np.log(z / rate))


def _discrete(layer: Layer, z: Complexes, method: str) -> DiscreteModes:
    """As `discretise`; ``dss`` is λ, and γΛ/z of the softmax over a kernel of L steps.

    With ``g(z) = (e^z - 1)/z``: ``γ Λ/z = g(z)/(L z g(L z))``, and ``-g(z)`` for an endless one.
    """
    if method != "dss":
        return discretise(z, method)
    remedy, what = "give the length of the sequences, or inf", "a number of steps"
    length = layer.number(
        KERNEL_LENGTH, lambda length: length >= 1, remedy, what=what, silent=False
    )
    held = discretise(z, ZERO_ORDER_HOLD)
    if not math.isfinite(length):
        return replace(held, log_gain=held.log_gain + 1j * np.pi)
    z = _away_from_zero(z)
    whole = discretise(length * z, ZERO_ORDER_HOLD)
    return replace(
        held,
        log_gain=held.log_gain - whole.log_gain - np.log(length * z),
        log_gain_slope=held.log_gain_slope - length * whole.log_gain_slope - 1 / z,
    )


def _away_from_zero(values: Complexes) -> Complexes:
    return np.where(np.abs(values) < SMALLEST, SMALLEST, values).astype(np.complex128)


def _read_readout(
    layer: Layer, shape: tuple[int, ...]
) -> tuple[Complexes, str | None, tuple[ProjectionGroup, ...]]:
    """W as (outputs, channels × modes), the tensor of D, and what moves W."""
    names = layer.names
    if "W" in names:
        readout = layer.pairs("W", (None, *shape)).reshape(-1, math.prod(shape))
        direct = layer.beside("W", "D", above=0 if "log_step" in names else 1)
        return readout, direct, layer.parts("W", "C", readout.shape, pairs=True)
    real, imag = (layer.real(role, shape) for role in ("C_real", "C_imag"))
    readout = (real + 1j * imag).reshape(1, -1)
    return readout, names["param_D"], layer.parts("C", "C", readout.shape)


DISCRETIZATION = Assumption(
    key="discretization",
    default=ZERO_ORDER_HOLD,
    choices=(*METHODS, "dss"),
    meaning="from continuous time to steps; S4D's default is zoh, but bilinear in version 3 and"
    " dss where w is stored",
)
BAND_LIMIT = Assumption(
    key="bandlimit",
    default="inf",
    meaning="the frequency Δ |Im A|/π from which S4D leaves a mode out of its output (bandlimit)",
)


class S4D(Family):
    """``λ = exp(Δ A)`` or its bilinear form, with ``A = -f(A_real) ± i A_imag``.

    One input, N/2 stored modes and ``y = 2 Re[C h]`` per channel: `SSMKernelDiag` (models/s4/s4.py)
    and `S4DKernel` (models/s4/s4d.py) in state-spaces/s4. Channel h uses row ``h mod n_ssm`` of A
    and B. One Δ per channel moves λ and γ of all its modes.
    """

    name = "s4d"
    title = "S4D (diagonal S4)"
    recognised_by = (
        "A_real with inv_dt, or log_A_real or inv_A_real with A_imag and log_dt, or log_w_real and"
        " w_imag or w with log_dt; no P"
    )
    equation = "λ = exp(Δ A) or (1 + Δ A/2)/(1 - Δ A/2), A = -f(A_real) ± i A_imag, Δ = g(inv_dt)"
    source = "state-spaces/s4, versions 2 to 4 and minimal; Gu et al. 2022, arXiv 2206.11893"
    assumptions = (DISCRETIZATION, *OF_THE_KERNEL, BAND_LIMIT, KERNEL_LENGTH)
    # w alone is the name of many things; beside a B it is that of the first S4, whose low-rank
    # part is in B and C. Version 4 may be real.
    layouts = (
        Layout(("log_dt", "w", "C"), without=("B", "P")),
        Layout((S4D_4.step, S4D_4.real), optional=(S4D_4.imag, "B", "C"), without=("P",)),
        *(
            Layout((each.step, each.real, each.imag), optional=("B", "C"), without=("P",))
            for each in S4D_VERSIONS
            if each not in (S4D_2_DSS, S4D_4)
        ),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        names = layer.names
        version = next(each for each in S4D_VERSIONS if {each.step, each.real} <= names.keys())
        method = layer.choose(DISCRETIZATION, default=version.kernel, silent=version is S4D_MINIMAL)
        diagonal, step, systems = read_kernel(layer, version, version.real)
        channels, count = diagonal.z.shape
        modes = step.modes(diagonal, first=True)
        z, discrete = modes.z, _discrete(layer, modes.z, method)
        # Every kernel but the softmax's is doubled, and the real one's too.
        pairs, doubled = version.imag in names, method != "dss"
        readin = np.ones((z.size, 1), dtype=np.complex128)
        along: tuple[ProjectionGroup, ...] = ()
        if "B" in names:
            # Channels of a system share its row.
            system = np.arange(channels) % systems
            rows = layer.pairs("B", (1, systems, count), paired=pairs)
            readin = rows[0, system].reshape(-1, 1)
            shared = (system[:, None] * count + np.arange(count)).ravel()
            along = layer.parts("B", "B", readin.shape, pairs=pairs, scalar=shared)
        # The modes past the limit, Δ |Im A|/(2π) ≥ bandlimit/2 at the Δ of training, are not heard.
        limit = layer.number(
            BAND_LIMIT, lambda band: band > 0, "give S4's bandlimit, e.g. 0.5, or inf"
        )
        factor = 2.0 if doubled and not pairs else 1.0
        heard = factor * (np.abs(z.imag.ravel() / step.rescaled) < limit * np.pi)
        roles = (version.step, *(part.role for part in diagonal.parts), "B", "C")
        fields = {
            "tensors": [names[role] for role in roles if role in names],
            "readin": readin,
            "conjugate_pairs": doubled and pairs,
        }
        if "C" not in names:
            return modes.recurrence(layer, discrete, **fields)
        readout = layer.pairs("C", (None, *z.shape), paired=pairs).reshape(-1, z.size) * heard
        along += tuple(
            replace(each, derivative=each.derivative * heard[each.column])
            for each in layer.parts("C", "C", readout.shape, pairs=pairs)
        )
        # D is that of the block around the kernel, which version 3 wraps once more.
        above = (layer.beside("C", "D", above=level) for level in (1, 2))
        direct = next(filter(None, above), None)
        return modes.kernel(layer, discrete, readout, direct, along, **fields)


class AnnotatedS4D(Family):
    """``λ = e^{ΔA}``, ``A = min(A_re, -1e-4) + i A_im``, ``γ = (e^{ΔA} - 1)/A``, ``y = Re[C h]``.

    `S4DLayer` (s4/s4d.py), mapped over the channels along the second axis. Its kernel has no B:
    B_re and B_im are stored and never used.
    """

    name = "annotated_s4d"
    title = "S4D of The Annotated S4 (Flax)"
    recognised_by = "A_re and A_im (N, H), C (N, H, 2) and log_step (1, H)"
    equation = "λ = exp(Δ A), A = min(A_re, -1e-4) + i A_im, Δ = exp(log_step)"
    source = "srush/annotated-s4; Gu et al. 2022, arXiv 2206.11893"
    layouts = (Layout(("A_re", "A_im", "C", "log_step"), fits=mapped),)

    def _recurrence(self, layer: Layer) -> Recurrence:
        diagonal, step = read_mapped(layer, "A_re", "A_im", LARGEST_REAL_PART)
        modes = step.modes(diagonal)
        readout = layer.pairs("C", modes.z.T.shape).T.reshape(1, -1)
        scalar = diagonal.parts[0].scalar.ravel()
        return modes.kernel(
            layer,
            discretise(modes.z, ZERO_ORDER_HOLD),
            readout,
            layer.beside("C", "D"),
            layer.parts("C", "C", readout.shape, pairs=True, scalar=scalar),
        )


S5_DISCRETIZATION = Assumption(
    "discretization", ZERO_ORDER_HOLD, METHODS, "from continuous time to steps; S5's default is zoh"
)
CONJUGATE_SYMMETRY = Assumption(
    key="conjugate-symmetry",
    default="true",
    choices=("true", "false"),
    meaning="whether S5 keeps one of each conjugate pair and puts out 2 Re[C h] (conj_sym)",
)
CLIP_EIGENVALUES = Assumption(
    key="clip-eigenvalues",
    default="false",
    choices=("true", "false"),
    meaning="whether S5 holds Re Λ below -1e-4 at run time (clip_eigs)",
)

# How many axes a single layer's tensors have in JAX; one more where layers are stacked.
_AXES = {"Lambda_re": 1, "Lambda_im": 1, "log_step": 2, "B": 3, "C": 3, "C1": 3, "C2": 3}
_BIDIRECTIONAL = (
    "both directions run with the same λ; their outputs count as separate ones, which is exact for"
    " the eigenvalues at white input"
)


class S5(Family):
    """``λ = exp(Λ Δ)`` or its bilinear form, ``Δ = exp(log_step)``, one Δ per eigenvalue.

    Every state sees every input: ``h[t] = λ h[t-1] + γ B x[t]``, s5/ssm.py of lindermanlab/S5
    (`Lambda_re`, `Lambda_im`, log_step (P, 1)) and s5/s5_model.py of i404788/s5-pytorch (complex
    `Lambda`, log_step (P,), no doubled output). γ depends on Λ and Δ.
    """

    name = "s5"
    title = "S5"
    recognised_by = "Lambda_re and Lambda_im, or a complex Lambda, beside log_step and B"
    equation = "λ = exp(Λ Δ) or (1 + Λ Δ/2)/(1 - Λ Δ/2), Δ = exp(log_step)"
    source = "lindermanlab/S5 and s5-pytorch; Smith et al. 2023, arXiv 2208.04933"
    assumptions = (S5_DISCRETIZATION, CONJUGATE_SYMMETRY, CLIP_EIGENVALUES, STEP_RESCALE)
    axes = _AXES
    # BP is half of the PyTorch port's factorised B. With P beside Λ it is a port of S4, not S5.
    layouts = tuple(
        Layout((*diagonal, "log_step", ("B", "BP")), ("C", "C1", "C2"), without=("P",))
        for diagonal in (("Lambda",), ("Lambda_re", "Lambda_im"))
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        names = layer.names
        method = layer.choose(S5_DISCRETIZATION)
        split = "Lambda" not in names
        # The PyTorch port stores every eigenvalue and has neither option.
        default = None if split else "false"
        paired = layer.choose(CONJUGATE_SYMMETRY, default=default, silent=not split)
        clipped = layer.choose(CLIP_EIGENVALUES, silent=not split)

        largest = LARGEST_REAL_PART if clipped == "true" else math.inf
        roles = ("Lambda_re", "Lambda_im")
        held = roles if split else ("Lambda", "Lambda")
        diagonal = read_diagonal(layer, held, (None,), largest=largest, names=roles)
        size = diagonal.z.size
        # log Δ is stored with a last axis of one in JAX.
        column = len(layer.shape("log_step")) == 2
        log_step = layer.real("log_step", (size, 1) if column else (size,)).ravel()
        delta = apply_transform(log_step, "exp", factor=step_factor(layer))
        modes = Step("log_step", delta, log_step).modes(diagonal)
        # Nothing but Re Λ changes the sign of Re z.
        parts = [replace(each, keeps_stable=each.name != "Lambda_re") for each in modes.parts]
        modes = modes._replace(parts=parts)
        readin = layer.pairs("B", (size, None)) if "B" in names else None
        readout, bidirectional = _read_both(layer, size)
        projections: tuple[ProjectionGroup, ...] = ()
        # Both directions share the current input, unknown to the outputs that stand for them.
        if readin is not None and readout is not None and not bidirectional:
            projections = (
                *layer.parts("B", "B", readin.shape, pairs=True),
                *layer.parts("C", "C", readout.shape, pairs=True),
                *layer.direct(layer.beside("B", "D"), len(readout), readin.shape[1]),
            )
        return modes.recurrence(
            layer,
            discretise(modes.z, method),
            tensors=[name for role, name in names.items() if role != "BP"],
            readin=readin,
            readout=readout,
            projections=projections,
            conjugate_pairs=paired == "true",
            also=(_BIDIRECTIONAL,) if bidirectional else (),
        )


def _read_both(layer: Layer, size: int) -> tuple[Complexes | None, bool]:
    """C (outputs, P), and whether it has a second half for the backward direction."""
    if "C1" in layer.names and "C2" in layer.names:
        forward = layer.pairs("C1", (None, size))
        return np.concatenate([forward, layer.pairs("C2", forward.shape)]), True
    if "C" not in layer.names:
        return None, False
    readout = layer.pairs("C", (None, None))
    if readout.shape[1] == 2 * size:
        return np.concatenate([readout[:, :size], readout[:, size:]]), True
    return layer.pairs("C", (None, size)), False
