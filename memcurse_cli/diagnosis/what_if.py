"""What if: the same eigenvalues and the same output, learnt through other parameters."""

from __future__ import annotations

from memcurse_cli.diagnosis.hessian.scores import summarise_hessian
from memcurse_cli.diagnosis.rounding import summarise_group
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.diagnosis.usable_rate import rate_verdict, settled, usable_rate
from memcurse_cli.diagnosis.verdicts import worst
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.rewriting import Rewriting, rewrite
from memcurse_cli.schema.figures import StateSummary, quantiles
from memcurse_cli.schema.report import WhatIf
from memcurse_cli.theory.moments.moments import moments
from memcurse_cli.theory.sensitivity import state_second_moment


def what_if(recurrence: Recurrence, settings: Settings) -> tuple[WhatIf, ...]:
    """The figures of a layer under each of the settings' rewritings."""
    return tuple(_what_if(recurrence, rewriting, settings) for rewriting in settings.what_if)


def _what_if(recurrence: Recurrence, rewriting: Rewriting, settings: Settings) -> WhatIf:
    rewritten, left_out, reason = rewrite(recurrence, rewriting)
    if rewritten is None:
        return WhatIf(rewriting.parametrization, rewriting.gain, None, left_out, reason)
    moment = moments(
        rewritten.log_eigenvalues,
        settings.autocorrelation,
        settings.horizon,
        settings.state_readout,
    )
    parameters = tuple(
        summarise_group(rewritten, group, moment, settings) for group in rewritten.parameters
    )
    hessian, hessian_reason = summarise_hessian(rewritten, settings)
    usable = usable_rate(rewritten, hessian, settings)
    parameters = tuple(settled(group, usable, hessian, settings) for group in parameters)
    return WhatIf(
        parametrization=rewriting.parametrization,
        gain=rewriting.gain,
        step_size=rewriting.step_size,
        left_out=left_out,
        reason=reason,
        state=StateSummary(quantiles(state_second_moment(moment, rewritten.log_gain))),
        parameters=parameters,
        hessian=hessian,
        hessian_reason=hessian_reason,
        usable_rate=usable,
        verdict=worst([*(group.verdict for group in parameters), rate_verdict(usable, settings)]),
    )
