"""No shape, however wrong, ends in anything but a layer or one line about the tensor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.detect import named_family
from memcurse_cli.families.family import ReadOptions

NAMES = {
    "rg_lru": "a_param a_gate.b input_gate.b",
    "rwkv": "time_decay time_faaaa time_decay_w1 key.weight value.weight",
    "rwkv7": "w0 k_k r_k value.weight",
    "mlstm": "ifgate_preact.bias igate_preact.bias fgate_preact.bias qkv_opreact.weight"
    " out_proj.weight igate.bias fgate.bias fgate.weight outnorm.weight k.weight v.weight",
    "slstm": "_bias_ _recurrent_kernel_",
    "gated_delta_net": "A_log dt_bias b_proj.weight in_proj_ba.weight k_proj.weight v_proj.weight"
    " norm.weight",
    "kda": "A_log dt_bias b_proj.weight v_proj.weight",
    "delta_net": "q_proj.weight k_proj.weight v_proj.weight b_proj.weight o_norm.weight",
    "gla": "gk_proj.0.weight gk_proj.1.bias",
    "hgrn": "f_proj.weight i_proj.weight o_proj.weight g_norm.weight",
    "retnet": "q_proj.weight k_proj.weight v_proj.weight o_proj.weight g_proj.weight g_norm.weight",
    "lightning_attention": "slope_rate qkv_proj.weight",
    "min_gru": "to_hidden_and_gate.weight to_hidden_and_gate.bias linear_z.weight linear_z.bias"
    " linear_h.weight",
    "min_lstm": "to_hidden_and_f_i_gate.weight to_hidden_and_f_i_gate.bias linear_f.weight"
    " linear_f.bias linear_i.weight linear_i.bias linear_h.weight",
}
SIZES = st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12])


@pytest.mark.parametrize("family", NAMES)
@settings(max_examples=60)
@given(data=st.data())
def test_every_shape_is_read_or_refused(family: str, data: st.DataObject) -> None:
    reader = named_family(family)
    absent = data.draw(st.sets(st.sampled_from(NAMES[family].split()), max_size=4) | st.just(set()))
    arrays = {
        f"model.layers.1.attn.{name}": np.full(data.draw(st.lists(SIZES, max_size=3)), 0.3)
        for name in NAMES[family].split()
        if name not in absent
    }
    arrays["model.lower_bounds"] = np.zeros(data.draw(st.lists(SIZES, max_size=3)))
    store = MemoryStore(arrays)
    for match in reader.find(store.tensors):
        try:
            recurrence = reader.read(store, match, ReadOptions())
        except TensorError:
            continue
        assert recurrence.size > 0
        assert recurrence.multiplicity >= 1
        assert np.isfinite(recurrence.log_eigenvalues).all()
        assert np.isfinite(recurrence.log_gain).all()
        for group in recurrence.parameters:
            assert group.size == group.scalar.max() + 1
            assert group.eigenvalue.max() < recurrence.size
            assert np.isfinite(group.eigenvalue_derivative).all()
