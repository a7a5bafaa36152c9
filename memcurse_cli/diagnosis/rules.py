"""What each code of a finding means: what was found, why it matters, and what to change."""

from __future__ import annotations

from collections.abc import Mapping

from memcurse_cli.checkpoints.untrusted.names import shown_place
from memcurse_cli.errors import UsageError
from memcurse_cli.schema.report import RuleDocument


def _too_coarse(code: str, dtype: str, instead: str) -> RuleDocument:
    return RuleDocument(
        code,
        f"{dtype} is too coarse",
        "rounding of recurrent parameters: δh = δω dh/dω to first order",
        what=f"Storing a recurrent parameter in {dtype} changes the state by more than a tenth, "
        "takes an eigenvalue to the unit circle or past it, or a value is beyond the type's range.",
        why="A recurrence multiplies by the same stored value at every step, so that its rounding "
        "error adds up over the memory, where one of a feed-forward weight is made once.",
        equation="√(E|h' - h|² / E|h|²) > 0.1 with h' the state after rounding, which is √κ(ω) "
        "|δω| while small; of the type that ω is stored in, with errors uniform over spacing(ω); "
        "or |λ| ≥ 1 after rounding",
        change=f"Keep the tensor in {instead}, also where the rest of the network is cast: exclude "
        "it from autocast, from the optimizer's half-precision copies and from quantisation.",
    )


_RULES = (
    RuleDocument(
        "MC101",
        "unstable eigenvalues",
        "Zucchet & Orvieto 2024, section 1",
        what="Some eigenvalues of the recurrence have a modulus of 1 or more.",
        why="What the state holds along them is not forgotten but kept or amplified at every "
        "step, so that the state, and with it every gradient, grows with the length of the "
        "sequence.",
        equation="|λ| ≥ 1, where E|h|² = Σ |λ|^2k over the steps has no limit",
        change="Use a parametrisation that keeps |λ| < 1 whatever the optimizer does, such as |λ| "
        "= exp(-exp(ν)) or |λ| = σ(b). An orthogonal matrix, or a rule that writes over its "
        "memory, has |λ| = 1 by design, and needs nothing.",
    ),
    RuleDocument(
        "MC103",
        "eigenvalues that never forget",
        "Zucchet & Orvieto 2024, section 2.2",
        what="Some eigenvalues are so close to the unit circle that their states forget nothing "
        "within any sequence: τ is beyond 100 horizons, or 10⁶ steps where no horizon is known.",
        why="Such a state is the sum of all its inputs. The gradient of its decay is tiny where "
        "the decay is stored as a small number, so that training cannot bring it back.",
        equation="τ = -1/log|λ| > 100 T, or > 10⁶",
        change="Check that the decay parameter still moves in training, and that its type can "
        "hold the step; initialise |λ| further from 1.",
    ),
    RuleDocument(
        "MC104",
        "eigenvalues without memory",
        "Zucchet & Orvieto 2024, section 2.2",
        what="More than half of the eigenvalues, and of the singular values of a dense matrix, "
        "forget their input within one step.",
        why="Their states repeat what a layer without recurrence computes; they carry nothing "
        "from one step to the next.",
        equation="|λ| < 0.01, and σ < 0.01 of a dense matrix",
        change="If memory is wanted there, initialise |λ| closer to 1; if not, fewer states do.",
    ),
    RuleDocument(
        "MC105",
        "memory longer than the sequence",
        "Zucchet & Orvieto 2024, section 2.2 b",
        what="Some time constants are longer than the sequences that the figures were taken for.",
        why="A sequence that ends cuts the sum of the sensitivity off, so that the figures hold "
        "for that length only: on longer sequences the same parameters are more sensitive.",
        equation="τ = -1/log|λ| > T",
        change="Before running on longer sequences than were trained on, inspect the checkpoint "
        "with their --horizon.",
    ),
    RuleDocument(
        "MC106",
        "the state grows before it decays",
        "Kreiss 1962; Trefethen & Embree 2005, chapters 16 and 18",
        what="Every eigenvalue of a dense matrix has |λ| < 1, and some power of it still has a "
        "norm above 10.",
        why="Some states and some errors of the state are amplified by that norm before they "
        "decay, over as many steps as its power has. Nothing in the eigenvalues says so, and a "
        "saturating activation makes of it a state that need not come back.",
        equation="max_k ‖A^k‖₂ > 10 while all |λ| < 1; K(A) = sup (|z|-1) ‖(z-A)⁻¹‖ bounds it "
        "from below",
        change="Bring the matrix closer to a normal one: initialise it as orthogonal or "
        "symmetric, penalise ‖AᵀA - AAᵀ‖, or use a diagonal recurrence, which has no transients.",
    ),
    RuleDocument(
        "MC107",
        "memory too short for the sequence",
        "Zucchet & Orvieto 2024, section 2.2",
        what="The longest memory of the whole model is below a tenth of the sequences' length; of "
        "severity error below a hundredth. Where attention layers can carry the rest it is one "
        "step milder.",
        why="What a sequence held longer ago than that no longer reaches the output: no rate and "
        "no optimizer makes the model use it.",
        equation="max over the layers of the steps to 1/e < T/10, < T/100; of a dense matrix the "
        "last k with ‖A^k‖ ≥ 1/e counts, of hidden weights where they were looked at their "
        "spectrum. Only where T is known, every layer was read, and the hidden weights that "
        "gates see were looked at",
        change="Initialise |λ| closer to 1, so that the memory spans the sequence: "
        "|λ| = exp(-1/steps).",
    ),
    RuleDocument(
        "MC108",
        "states that sum their inputs",
        "one rounding and one input at every step: docs/precision.md",
        what="Some heads or states of a layer whose decay its inputs make remember longer than a "
        "sequence is, and E|h|² still grows in proportion to the time at its end: a warning where "
        "the horizon is known.",
        why="What was trained to forget has become a sum. The state grows as the square root of "
        "the time, and in proportion to it where its inputs have a mean, until float16 overflows "
        "and training or serving ends in NaN; and it holds the rounding errors of every step.",
        equation="τ = -1/log|λ| > T and d log E|h|² / d log T > 1/2 at T; float16 overflows where "
        "5 √E|h|² = 65504, for drives of variance 1 and for a constant one",
        change="See with memcurse track since when they do, and keep these states in float32 where "
        "float16 overflows within the sequences that are served.",
    ),
    RuleDocument(
        "MC201",
        "a step can destabilise the recurrence",
        "Zucchet & Orvieto 2024, eq. 6 and section 3",
        what="One optimizer step on a parameter group changes the state by more than a limit, and "
        "it can push |λ| beyond 1.",
        why="The longer the memory, the more a small change of λ adds up: E|dh/dλ|² grows as "
        "1/(1-|λ|)³. This is the curse of memory, and it holds without any exploding gradient. "
        "Here the step also reaches the unit circle, beyond which the state explodes.",
        equation="lr √κ(ω) of the group's p99 scalar, κ(ω) = E|dh/dω|² / E|h|², above "
        "--step-limit (10 %)",
        change="Reparametrise the modulus so that |λ| < 1 holds by construction and its "
        "sensitivity stays bounded, as |λ| = exp(-exp(ν)) with a normalised input does, or give "
        "the group a lower learning rate.",
    ),
    RuleDocument(
        "MC202",
        "a step scrambles what the state holds",
        "Zucchet & Orvieto 2024, eq. 6 and section 3",
        what="One optimizer step on a parameter group changes the state by more than a limit by "
        "turning the angle of λ.",
        why="A turn of the angle by δ has moved the phase by kδ after k steps, so that over a "
        "long memory the state stands for something else after each update. A step of this size "
        "takes no |λ| past 1; what the rest of the network does with such a state is not bounded "
        "by that.",
        equation="lr √κ(ω) of the group's p99 scalar, κ(ω) = E|dh/dω|² / E|h|²; for the LRU's "
        "angle κ ~ θ²/(2(1-|λ|)²) as |λ| → 1",
        change="Give the angle its own, lower learning rate, or a parametrisation that scales it "
        "by 1-|λ|², such as `optimal`.",
    ),
    RuleDocument(
        "MC203",
        "a step rescales the state",
        "Zucchet & Orvieto 2024, eq. 6 and section 3",
        what="One optimizer step on a parameter group changes the state by more than a limit, by "
        "changing its scale or a modulus that cannot leave the unit disk.",
        why="What follows the layer sees its input grow or shrink at every update and has to "
        "follow.",
        equation="lr √κ(ω) of the group's p99 scalar, κ(ω) = E|dh/dω|² / E|h|²",
        change="Give the group a lower learning rate; where the layer has no gain of its own, "
        "normalise the input of each state by its memory, γ = √(1-|λ|²).",
    ),
    RuleDocument(
        "MC204",
        "a step on a dense matrix moves every eigenvalue",
        "Zucchet & Orvieto 2024, sections 2.3 and A.2.3",
        what="One optimizer step on every entry of a dense recurrent matrix, their signs "
        "independent, changes the state by more than a limit.",
        why="Every entry moves every eigenvalue, so that the eigenvalues of the longest memory "
        "set the sensitivity of all n² entries, and no learning rate per entry can tell them "
        "apart. Signs in concert reach further: the output at most √λ_max(D^-½ H D^-½) times as "
        "far, D = diag H.",
        equation="lr √(E‖dh/dA‖²_F / E‖h‖²), with E‖dh/dA‖²_F = tr G tr Σ + 2 Re Σ_ij g_i σ_j "
        "λ_iλ_j/(1-λ_iλ_j) for white input",
        change="Make the recurrence diagonal, with complex eigenvalues of its own, or lower the "
        "learning rate of the matrix.",
    ),
    RuleDocument(
        "MC205",
        "the state is not normalised",
        "Zucchet & Orvieto 2024, eq. 5",
        what="The variance of the state is more than 100 times that of its drive, and no gain "
        "makes up for it.",
        why="States of long memory drown those of short memory in whatever reads them, and the "
        "gradients of what writes them grow likewise.",
        equation="E|h|² = γ²/(1-|λ|²) for white input, > 100 at γ = 1",
        change="Scale the input of each state by √(1-|λ|²), which makes E|h|² that of the drive; "
        "where some |λ| ≥ 1 bring it below 1 first. For a dense matrix, scale the input of the "
        "layer by 1/√E|h|².",
    ),
    RuleDocument(
        "MC206",
        "a sensitivity is not computed",
        "Zucchet & Orvieto 2024, eq. 6 and section 3",
        what="The sensitivity to a parameter group is not known: the computation was refused, for "
        "the reason that the message gives.",
        why="What a step on the group does to the state is left open.",
        equation="E‖dh/dA‖²_F of a dense matrix at the --horizon that was asked for",
        change="Give a shorter --horizon.",
    ),
    RuleDocument(
        "MC207",
        "the learning rate is near or above the usable one",
        "docs/verdict.md; Zucchet & Orvieto 2024, section 4.2",
        what="The learning rate is in the range of the largest one that training with Adam is "
        "expected to bear on this layer; of severity error above it.",
        why="Beyond it training ends in one of two ways. Where a step can push eigenvalues out of "
        "the unit disk, the loss explodes; where it cannot, every step changes the output by as "
        "much as the output itself, and the loss stalls.",
        equation="divergence: lr √κ(λ) |Δλ| = 1.2, with |Δλ| an eigenvalue's shift by a step of 1 "
        "on every entry; stall: lr √(tr H / E y²) = 2.3, or of a tanh cell that is run lr √(Σ "
        "E‖dh/dω‖² / E‖h‖²) = 0.12 from the start and 0.23 once trained",
        change="Give the recurrent parameters at most the rate that is given; for a dense matrix, "
        "use a diagonal recurrence, whose eigenvalues a step moves far less.",
    ),
    RuleDocument(
        "MC301",
        "the Hessian is far from diagonal",
        "Zucchet & Orvieto 2024, section 4.3",
        what="After an ideal diagonal preconditioner the largest curvature is still more than 10.",
        why="Adam rescales each coordinate by itself. Curvature that lies along no coordinate "
        "remains, so that a learning rate that is right for each parameter alone is too large for "
        "all of them together.",
        equation="λ_max(D^-½ H D^-½) > 10 with D = diag H and H_ab = E[J_a J_b] at a perfect fit; "
        "1 is diagonal, the number of parameters is the worst",
        change="Spread the eigenvalues, learn λ through parameters of its own instead of a dense "
        "matrix, or lower the learning rate of the recurrent parameters.",
    ),
    RuleDocument(
        "MC302",
        "plain gradient descent needs a smaller step",
        "Zucchet & Orvieto 2024, section 4.3",
        what="Gradient descent without a preconditioner would diverge at the learning rate that "
        "was given.",
        why="A step of gradient descent is stable below 2 over the largest curvature. Long memory "
        "makes the curvature of a few parameters large, and they hold back all the others.",
        equation="lr > 2 / λ_max(H), for a squared error at its optimum, per unit of input "
        "variance",
        change="Nothing under Adam or another adaptive optimizer; plain gradient descent needs a "
        "rate below the one that is given.",
    ),
    RuleDocument(
        "MC303",
        "the matrix is far from normal",
        "Henrici 1962",
        what="The eigenvectors of a dense matrix are nearly parallel, or do not span the space.",
        why="Then powers of the matrix can grow before they decay, and the state is more "
        "sensitive than the eigenvalues tell.",
        equation="κ(P) > 10³ for A = P Λ P⁻¹; departure √(‖A‖_F² - Σ|λ|²) / ‖A‖_F",
        change="Read the sensitivity of the whole matrix, which includes this; an orthogonal or a "
        "diagonal recurrence is normal by construction.",
    ),
    _too_coarse("MC401", "bfloat16", "float32"),
    _too_coarse("MC402", "float16", "float32"),
    _too_coarse("MC403", "float32", "float64"),
    _too_coarse("MC404", "an 8-bit type", "16 bits or more"),
    RuleDocument(
        "MC405",
        "the state is kept in too few bits",
        "one rounding at every step: docs/precision.md",
        what="The model's config.json asks for a type of the recurrent state in which some heads "
        "lose more of it than --state-error (1 %), or overflow within the horizon.",
        why="The state is rounded at every step, and a state of a long memory holds the errors of "
        "as many steps as it remembers. Nothing averages them out.",
        equation="√(E|e|²/E|h|²) = δ √N > 0.01, with N = 1/(1-a) - T aᵀ/(1-aᵀ) roundings, "
        "a = |λ|², and δ = 0.2123 · 2⁻ᵖ for p bits of mantissa",
        change="Keep the state in the type that the finding names: mamba_ssm_cache_dtype in "
        "config.json, --mamba-ssm-cache-dtype of vLLM, --mamba-ssm-dtype of SGLang.",
    ),
    RuleDocument(
        "MC501",
        "gates stand at zero input",
        "Zucchet & Orvieto 2024, sections 3.2 and D.2",
        what="λ depends on the input, and every figure is that of the gates at zero input.",
        why="The theory takes λ as constant in time. Inputs open and close the gates around their "
        "nominal value, so that memory is at times longer and at times shorter than reported.",
        equation="λ_t = σ(W x_t + b) is taken as σ(b); likewise for a step size Δ(x_t)",
        change="Nothing; read the figures as those of the nominal gate, and see how far it moves "
        "with --gates.",
    ),
    RuleDocument(
        "MC502",
        "the activation is linearised",
        "Zucchet & Orvieto 2024, section 2.2 a",
        what="The layer has an activation between its steps, and figures of a linear one are "
        "taken at its slope.",
        why="Where the biases are known, the slope is that of mean field theory under inputs of "
        "unit variance. Elsewhere it is 1, that of small states, for which memory and "
        "sensitivities are the largest. Where the state does not decay at that slope, no linear "
        "figure holds, and none is given.",
        equation="h' = φ(A h + B x) is taken as h' = s (A h + B x), s = √E φ'(u)² or s = φ'(0) = 1",
        change="Nothing; at a slope of 1, read the figures as those of small states.",
    ),
    RuleDocument(
        "MC503",
        "memory through the hidden weights",
        "Zucchet & Orvieto 2024, section D.2",
        what="Gates see the whole state through dense weights, and memory that runs through those "
        "is not in λ.",
        why="The true memory can be longer than the gates' own time constants, and the true "
        "sensitivity larger.",
        equation="the eigenvalues of ∂h_{t+1}/∂h_t at zero input and zero state, against λ = σ(b)",
        change="Measure it near the zero state with --spectra; do not take the figures of the "
        "gates as those of the whole layer.",
    ),
    RuleDocument(
        "MC504",
        "a rank-one term beside the diagonal",
        "Yang et al. 2024, arXiv 2406.06484, section 2.2; interlacing, Golub & Van Loan 2013, "
        "8.1.8",
        what="The recurrence subtracts a rank-one term from its diagonal, as delta rules do, and "
        "λ is that of the diagonal alone.",
        why="At an input that writes, one eigenvalue of each head comes down: what was stored "
        "under that key is written over. The others stay between their neighbours on the "
        "diagonal.",
        equation="A_t = diag(λ) - β_t k_t k_tᵀ, whose eigenvalues interlace with λ",
        change="Nothing; read τ as that of what no later input writes over.",
    ),
    RuleDocument(
        "MC505",
        "gates that move change the figures",
        "Zucchet & Orvieto 2024, section D.2, with gates drawn independently at every step",
        what="Under inputs of the assumed scale the gates move so far that E h² or κ differs by "
        "more than a factor 2 from that of gates held at their bias.",
        why="Step effects and learning rates of the report are those of the held gates. Gates "
        "that move forget faster than their bias says where they are mostly open, and slower "
        "where they are mostly closed, since means of λ² and of its powers are taken over their "
        "whole range.",
        equation="E h² = (E γ² + …) / (1 - E λ²) with z ~ N(b, ‖W‖² E x² + ‖U‖² E h²), against γ² "
        "/ (1 - λ²) at z = b; likewise κ",
        change="Read E h² and κ of the moving gates; measure the RMS of the gates' input and give "
        "it with --input-scale.",
    ),
)

RULES: Mapping[str, RuleDocument] = {rule.code: rule for rule in _RULES}
"""Every rule by its code, in the order of the codes; a code never changes its meaning."""


def find_rules(prefix: str) -> tuple[RuleDocument, ...]:
    """The rules whose code begins with a text of either case; raises `UsageError` for none."""
    found = tuple(rule for code, rule in RULES.items() if code.startswith(prefix.upper()))
    if found and prefix:
        return found
    near = [code for code in RULES if code[:3] == prefix.upper()[:3]]
    what = f"{shown_place(prefix)!r} is not the code of a finding"
    raise UsageError(what, where="rule", remedy=f"known are {', '.join(near or RULES)}")
